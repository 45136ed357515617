"""The release; pyproject.toml has the same number, and a test compares them."""

VERSION = "0.1.0"


def install_hint(extra: str) -> str:
    """How to install what is missing: from a clone, because the package `tidemark` on PyPI belongs to somebody else."""
    return f"in a clone of Tidemark, pip install '.[{extra}]'"
