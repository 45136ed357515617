"""The Spark jobs against peers, on one machine."""
