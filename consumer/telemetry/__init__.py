"""What an instance reports about itself: log line, row, records, metrics."""
