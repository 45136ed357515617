"""What targets need by the hour of the week, out of months of history: a schedule to paste, with its error on weeks held out."""
