"""What a consumer decides: from events received to checkpoints saved. Pure: the one folder a reader must know."""
