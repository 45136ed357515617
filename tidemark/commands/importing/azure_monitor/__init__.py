"""Autoscale settings of Azure Monitor: profiles, rules, cooldowns, notifications. Pure."""
