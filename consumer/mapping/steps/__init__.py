"""Steps and routes of the consumer's file: what becomes of a document, without code (pure)."""
