"""From app settings to Azure's clients, and storage as the stores use it."""
