"""Scalers: adapters that read and set the capacity of one kind of target. `scaling.service.registry` lists them."""
