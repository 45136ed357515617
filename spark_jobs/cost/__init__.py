"""The costs of many targets: exports and the scaling log joined by target and day."""
