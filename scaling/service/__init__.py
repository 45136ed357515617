"""The shell around the decisions: collect, evaluate, apply, verify."""
