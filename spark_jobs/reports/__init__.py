"""Where the page of a run is put, and what its runs report."""
