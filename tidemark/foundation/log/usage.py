"""What commands print of an option that is wrong, without secrets. Light: it is imported by every command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidemark.foundation.sanitize import without_secrets


@contextmanager
def _usage_errors_without_secrets() -> Iterator[None]:
    """People paste a connection string where a name belongs, and the error quotes it."""
    try:
        yield
    except _UsageError as error:
        error.message = without_secrets(error.message)  # type: ignore[attr-defined]  # click's own
        raise


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Click's base of all errors in options; typer has a click of its own and does not export it."""


class _WithoutSecrets:
    def make_context(self, *args: Any, **options: Any) -> Any:
        with _usage_errors_without_secrets():
            return super().make_context(*args, **options)  # type: ignore[misc]  # of the command it is mixed into

    def invoke(self, *args: Any) -> Any:
        with _usage_errors_without_secrets():
            return super().invoke(*args)  # type: ignore[misc]  # as above


class Command(_WithoutSecrets, TyperCommand):
    """The `cls` of a program that is one command."""


class CommandGroup(_WithoutSecrets, TyperGroup):
    """The `cls` of a program with several commands: it parses the options of all of them."""
