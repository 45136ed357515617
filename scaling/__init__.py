"""The autoscaler: collectors, windows, rules, decisions, scalers and the decision log."""
