"""From an event's body to the document that is written."""
