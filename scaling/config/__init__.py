"""tidemark.toml: from text to typed policies, with every problem told at once."""
