"""All local servers and the functions as one: started, pointed at one another, watched and stopped."""
