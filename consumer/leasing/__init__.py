"""Which partitions an instance receives, from where on, and how instances share them."""
