"""The script for spark-submit, alone in its folder: a `platform` beside a script hides Python's own."""
