"""What a consumer needs, tried by harmless calls: the doctor's checks of its hub, its target, and its stores."""
