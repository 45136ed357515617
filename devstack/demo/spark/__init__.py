"""The Spark jobs of the demos, in a process of their own."""
