"""What the local Resource Manager stands on: requests and answers, plans as state machines, SKUs."""
