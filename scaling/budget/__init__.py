"""The budget of a day: its usage, and how much capacity the rest of the day allows. Pure."""
