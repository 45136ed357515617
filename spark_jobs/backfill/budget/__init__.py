"""One budget of request units that all tasks share."""
