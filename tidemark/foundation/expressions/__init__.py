"""What the expression languages of rules and of the consumer's file share."""
