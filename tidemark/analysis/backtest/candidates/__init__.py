"""What is tried: the grid, its variations, and which of them to take."""
