"""The advice over many targets: a history is one task's, and its policies are shared out."""
