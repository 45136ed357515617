"""Partition keys, and the physical partitions that share out their hashes and request units."""
