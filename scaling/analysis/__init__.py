"""What a policy must do wrong, and a logged decision made again. Pure."""
