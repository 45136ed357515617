"""`make demo` and `make demo-spark`: what they do, show and prove."""
