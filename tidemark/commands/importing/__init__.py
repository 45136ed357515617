"""`tidemark import`: an autoscale setting of Azure Monitor, or a ScaledObject of KEDA, as a tidemark.toml."""
