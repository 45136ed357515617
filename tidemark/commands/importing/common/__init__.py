"""What both kinds have in common: values of a document, the target that is made of them, periods of a week, connections. Pure."""
