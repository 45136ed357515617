"""What a person runs against an app in Azure: its decisions, orders, first configuration and history."""
