"""What goes over the wire: requests, signatures, errors."""
