"""The release, and how what is missing of it is installed."""

from importlib.util import find_spec
from pathlib import Path
from sys import prefix

VERSION = "0.2.0"
"""Both pyproject.toml have the same number; a test compares them."""


def install_hint(extra: str) -> str:
    """How to add what an extra brings to the environment that runs. From a clone, because nothing is published yet.

    A program that imports the library alone gets the extra of the library: the other project would put `consumer` beside its own.
    """
    if find_spec("scaling") is None:
        command = f"pip install '.[{extra}]'"
    elif find_spec("tidemark.commands") is None:  # the app in Azure and the image are deployed without them
        return f"what is deployed needs the extra '{extra}': docs/deploying/packages.md#extras says how"
    elif (
        Path(prefix).name == ".venv" and Path(prefix, "../devstack/setup").exists()
    ):  # made by make, of a clone
        return f"make setup, in {Path(prefix).parent}"
    elif Path(prefix, "uv-receipt.toml").exists():  # the environment of a tool of uv, which has no pip
        command = f"uv tool install './cli[{extra}]', with the extras that you have: others are removed"
    elif Path(prefix, "pipx_metadata.json").exists():
        command = f'pipx runpip tidemark-azure-cli install "$PWD" "$PWD/cli[{extra}]"'
    else:
        command = f"pip install . './cli[{extra}]'"
    return f"in a clone of Tidemark, {command}"
