"""Resource groups, and resources of any type: as a deployment puts them, as somebody changes them, and their lists."""
