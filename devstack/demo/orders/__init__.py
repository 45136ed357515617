"""The part with the plan: its load, its fleet, its report."""
