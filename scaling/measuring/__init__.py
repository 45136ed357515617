"""What metrics measure: which samples and memories go where a metric reads something else than before. Pure."""
