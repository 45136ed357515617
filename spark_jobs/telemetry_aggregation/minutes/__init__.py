"""Minutes of a series: their cells, percentiles and windows."""
