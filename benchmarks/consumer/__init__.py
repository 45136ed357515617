"""The consumer against the loops that a user would write with the bare SDKs, on the same servers in the same run."""
