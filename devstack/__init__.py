"""What makes Tidemark run on one machine without Azure: local servers the real Azure SDKs talk to."""
