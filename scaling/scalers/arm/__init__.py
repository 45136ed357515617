"""Azure Resource Manager: its clients and its errors."""
