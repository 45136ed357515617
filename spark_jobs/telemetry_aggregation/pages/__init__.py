"""The pages: what both draw, Spark's, and that of one machine."""
