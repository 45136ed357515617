"""The budget of a day: what is spent of it, and how much capacity the rest of the day allows. Pure."""
