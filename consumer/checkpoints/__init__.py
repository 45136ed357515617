"""Where positions and leases are kept: blobs, SQL, memory."""
