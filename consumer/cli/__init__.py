"""The consumer's commands: `consume`, `checkpoints`, `dead-letters` and `consumer`."""
