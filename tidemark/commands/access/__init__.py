"""How the commands reach an app: through its storage account, or through the API of a deployed app."""
