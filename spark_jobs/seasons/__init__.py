"""The weekly profiles of many targets."""
