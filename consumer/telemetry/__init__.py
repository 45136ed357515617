"""What an instance tells of itself: log line, row, records, metrics."""
