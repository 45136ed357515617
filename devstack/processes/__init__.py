"""The local stack's processes: started, watched, and ended with their parent."""
