"""The autoscaler's functions: timers, queues, the HTTP API and the dashboard."""
