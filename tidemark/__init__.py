"""The command line as a whole: the only place that knows all parts."""
