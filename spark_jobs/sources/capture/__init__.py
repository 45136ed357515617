"""Files of Event Hubs Capture."""
