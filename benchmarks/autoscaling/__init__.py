"""Autoscalers on real load: late messages and instance-hours of our rules, of the peers, and of a clairvoyant."""
