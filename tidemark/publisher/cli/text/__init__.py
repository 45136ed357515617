"""Lines of an input, read with bounded memory, and the fields of a line that go with its event."""
