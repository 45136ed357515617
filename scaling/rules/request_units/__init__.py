"""Instances and request units kept in step: the sizing both rules share, and the two rules. Pure."""
