"""Programs beside the local servers: Node.js found, child processes started, watched and ended with their parent."""
