"""Call budgets: how often each service may be called, and in which order; shared by all targets of a process."""
