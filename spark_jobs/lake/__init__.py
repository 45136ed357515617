"""Object stores that Spark has no file system for: files, tables and texts through fsspec, by tasks."""
