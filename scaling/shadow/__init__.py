"""Rules simulated beside those that decide: what they would do, what it would cost, how late messages would be."""
