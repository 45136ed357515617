"""Lines as they are read, with bounded memory, and what of a line besides its body goes with an event."""
