"""The errors that all parts raise on purpose, by who must act."""

from __future__ import annotations

from tidemark.foundation.sanitize import without_secrets


class ShownError(Exception):
    """An error whose text goes to people, wherever it is caught: logs, pages, tables, terminals. The text has no secrets,
    although it is often made of what an SDK said.
    """

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class TidemarkError(ShownError):
    """The base of what any part raises on purpose. `exit_status` is of a process that ends by it."""

    exit_status = 1


class SettingsError(TidemarkError):
    """A setting is wrong: it names the setting, what was found and what is accepted. Raised at start-up only."""

    exit_status = 2


class UnavailableError(TidemarkError):
    """A service cannot be reached or refuses for now. Safe to try again."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ConflictError(Exception):
    """The stored row changed since it was loaded: load again and decide again."""


class StoreUnavailableError(ShownError):
    """The store did not answer; nothing may be concluded."""


class OrderError(ValueError):
    """An order cannot be carried out: names the field, what was found, what is accepted."""
