"""What a namespace keeps: hubs, partitions, their logs, and captured files."""
