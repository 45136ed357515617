"""tidemark.toml: policies, the rules they name, and the way from text to both, with every problem told at once."""
