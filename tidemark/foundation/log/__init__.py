"""The log of a process: what may leave with a line, and what a line says to queries."""
