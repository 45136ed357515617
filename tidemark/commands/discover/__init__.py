"""`tidemark discover`: what a subscription has that can be scaled and by what, as a first tidemark.toml."""
