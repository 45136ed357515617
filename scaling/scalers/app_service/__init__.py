"""Sets the number of instances of an App Service Plan."""
