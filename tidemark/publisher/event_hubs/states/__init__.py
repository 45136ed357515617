"""Where producers keep their state: in memory, a file, a database, or blobs."""
