"""The backtest over many targets: candidates scored by tasks, and ranked where they are."""
