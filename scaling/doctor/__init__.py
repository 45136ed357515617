"""`tidemark doctor`: whether a deployment can do its work, tried by harmless calls."""
