"""What the SQL sink and the SQL stores share: tables, connections, positions, letters, targets."""
