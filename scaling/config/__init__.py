"""tidemark.toml: policies, the rules they name, and the way from text to both, with all problems reported at once."""
