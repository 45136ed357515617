"""How often each service may be called, and who goes when: budgets that all targets of a process share."""
