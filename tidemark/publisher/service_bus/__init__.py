"""What is behind the sender for Service Bus."""
