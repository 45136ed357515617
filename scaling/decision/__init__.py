"""From windows, state and orders to one explained recommendation. Pure: the one folder a reader must know."""
