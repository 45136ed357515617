"""The consumer's file: its hubs, their steps and routes, and the sinks, read whole or not at all."""
