"""What counts as a secret: by its value, as configuration holds it, and by the way it is spelt."""
