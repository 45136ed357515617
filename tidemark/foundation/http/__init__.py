"""HTTP without a framework: callers, responses, and requests to other addresses."""
