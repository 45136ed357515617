"""The rules, one a file: what they see, what is made of their verdicts, and how they are combined."""

from scaling.rules.view import MetricsView, Rule

__all__ = ["MetricsView", "Rule"]  # what a user's rule needs
