"""Recognises secrets: by their values, from the configuration, and by the way they are written."""
