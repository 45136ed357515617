"""The release; pyproject.toml has the same number, and a test compares them."""

VERSION = "0.1.0"
