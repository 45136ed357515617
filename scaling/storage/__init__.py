"""States, orders and the scaling log in Table Storage."""
