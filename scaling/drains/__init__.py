"""Drain notices: a scale-in is announced to the workers, who acknowledge it before it is carried out. Pure."""
