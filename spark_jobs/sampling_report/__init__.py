"""What Application Insights sampled, what it lost, and on which day that began."""
