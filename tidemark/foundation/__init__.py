"""The ground floor that all parts stand on: knows Azure, knows nothing of scaling, consuming or publishing."""
