"""A SQL database for code that must not block: threads, deadlines and errors."""
