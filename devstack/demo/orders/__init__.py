"""The part with the plan: its load, its fleet, what its application counts, its report."""
