"""Where the commands look and give orders: the app's storage account, or the API of a deployed app."""
