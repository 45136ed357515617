"""The part with the database: records, consumers, and the proof that none was lost."""
