"""Hides secrets in errors about wrong options. It imports little, because every command imports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidemark.foundation.sanitize import without_secrets


@contextmanager
def _usage_errors_without_secrets() -> Iterator[None]:
    """Hide secrets in usage errors: people paste a connection string in place of a name, and the error quotes it."""
    try:
        yield
    except _UsageError as error:
        error.message = without_secrets(error.message)  # type: ignore[attr-defined]  # click's own
        raise


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of click's errors in options. Typer contains its own click, and does not export this class."""


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
