"""The log and the terminal of a process, without secrets, and its end while it loads."""
