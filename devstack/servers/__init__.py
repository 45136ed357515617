"""What the local servers share: a certificate, faults on request."""
