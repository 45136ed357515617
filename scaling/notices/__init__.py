"""What people are told by webhooks: which notices a change of state gives, and how each surely arrives."""
