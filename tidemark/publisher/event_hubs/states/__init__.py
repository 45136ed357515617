"""Stores for the state of producers: memory, a file, SQL, and blobs."""
