"""What is behind the producers for Event Hubs."""
