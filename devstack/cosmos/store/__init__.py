"""What the account holds: databases, containers, documents, throughput."""
