"""What the Makefile's commands need before anything runs; the standard library only."""
