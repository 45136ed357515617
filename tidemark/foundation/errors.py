"""The errors that all parts share, one for each reaction of the caller."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.foundation.sanitize import without_secrets


class ShownError(Exception):
    """An error whose text people read in logs, pages, tables or terminals. Secrets are removed from the text, because it often
    contains the text of an SDK.
    """

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class TidemarkError(ShownError):
    """Base of the errors of all parts. `exit_status` is that of a command that ends with it."""

    exit_status = 1


class SettingsError(TidemarkError):
    """A setting is wrong. The message names it, its value and the accepted values. Raised at start-up only."""

    exit_status = 2


class UnavailableError(TidemarkError):
    """A service is unreachable or busy. Trying again is safe."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ConflictError(Exception):
    """The stored row has changed since it was loaded. Load it and decide again."""


class StoreUnavailableError(ShownError):
    """The store did not answer, so the stored state is unknown."""


class OrderError(ValueError):
    """An order is invalid. The message names the field, its value and the accepted values."""


def problems_of(**checks: Callable[[], object]) -> dict[str, str]:
    """What is wrong with which option: the words of the ValueErrors that the checks of options raise."""
    problems = {}
    for option, check in checks.items():
        try:
            check()
        except ValueError as error:
            problems[option] = str(error)
    return problems
