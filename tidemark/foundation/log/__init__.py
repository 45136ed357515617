"""A process: its log and terminal, from which secrets are kept, and how it is stopped while it loads."""
