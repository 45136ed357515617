"""The rules, one a file: what they see, what is made of their verdicts, and how they are combined."""

from scaling.rules.view import MetricsView

__all__ = ["MetricsView"]  # what a user's rule needs
