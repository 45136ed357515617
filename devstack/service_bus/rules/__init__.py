"""Rules of subscriptions: documents, SQL, what they select and change."""
