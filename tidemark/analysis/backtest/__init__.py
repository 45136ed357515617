"""Recorded load replayed against a grid of rules, with the product's own decide(): what to set, and what it saves."""
