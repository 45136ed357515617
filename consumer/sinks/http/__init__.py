"""Documents sent to a web service: a request for each, or for many."""
