"""What a worker answers over HTTP: liveness, readiness, metrics, and the state of its partitions."""
