"""What both parts of the demo use: real flights, the functions' API, the live view."""
