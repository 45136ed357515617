"""A consumer at work: the core's orders carried out, in a process, in several, or inside a function."""
