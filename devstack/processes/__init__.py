"""Programs beside the local servers: Node.js and PostgreSQL found, child processes started, watched and ended with their parent."""
