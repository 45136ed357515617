"""What Azure billed, joined with the scaling log: by target and change, against a static peak, the shadow, and autoscale of RU/s."""
