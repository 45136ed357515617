"""What an error of an SDK, a store or a user's own class means for the one who has to mend it."""

from __future__ import annotations

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from scaling.model import Reason
from scaling.ports import CollectError, ScalerError
from scaling.scalers.arm.errors import Kind, classify
from tidemark.foundation.azure.connections import describe_identity_error
from tidemark.foundation.checkup import TriedError, Trouble
from tidemark.foundation.errors import SettingsError, StoreUnavailableError, UnavailableError
from tidemark.foundation.sanitize import describe_error, error_text
from tidemark.foundation.settings_reader import ConfigError

_KINDS = {
    Kind.FORBIDDEN: Trouble.REFUSED,
    Kind.NO_IDENTITY: Trouble.NO_IDENTITY,
    Kind.NOT_FOUND: Trouble.ABSENT,
    Kind.THROTTLED: Trouble.BUSY,
    Kind.BUSY: Trouble.BUSY,
}
_OURS = (CollectError, ScalerError, StoreUnavailableError, UnavailableError)
_WORDS = {  # of our own collectors, for errors of SDKs that have no status
    "access refused": Trouble.REFUSED,
    "does not exist": Trouble.ABSENT,
    "throttles": Trouble.BUSY,
    "no answer": Trouble.SILENT,
}


def trouble_of(error: Exception) -> Trouble:
    """By the error that began it, else by the words that our own adapters use for it."""
    if isinstance(error, TriedError):
        return error.trouble
    if isinstance(error, CollectError) and error.reason is Reason.ENTITY_DISABLED:
        return Trouble.DISABLED
    trouble = _by_kind(_origin(error))
    if trouble is Trouble.OTHER and isinstance(error, _OURS):
        return next((each for words, each in _WORDS.items() if words in error_text(error)), trouble)
    return trouble


def story_of(error: Exception) -> str:
    """In words; the error of an adapter of ours is a sentence, of another one its kind belongs to it."""
    if isinstance(error, ClientAuthenticationError) and error.status_code not in {401, 403}:
        return describe_identity_error(error)
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    words = (
        error_text(error)
        if isinstance(error, (*_OURS, ConfigError, SettingsError, TriedError))
        else describe_error(error)
    )
    return words or type(error).__name__


def _origin(error: BaseException) -> BaseException:
    """What an adapter's error was raised for. One raised `from None` still has its context."""
    while isinstance(error, _OURS):
        before = error.__cause__ or error.__context__
        if before is None:
            return error
        error = before
    # The operator must change a setting, or a role that the service names.
    refused = isinstance(error, SettingsError) and isinstance(error.__cause__, AzureError)
    return error.__cause__ if refused and error.__cause__ is not None else error


def _by_kind(error: BaseException) -> Trouble:
    if isinstance(error, TimeoutError):
        return Trouble.SILENT
    if isinstance(error, AzureError):
        return _of_azure(error)
    if isinstance(error, OSError):
        return Trouble.UNREACHABLE
    return Trouble.SETTINGS if isinstance(error, SettingsError | ConfigError | ValueError) else Trouble.OTHER


def _of_azure(error: AzureError) -> Trouble:
    kind = classify(error).kind
    if kind is not Kind.UNKNOWN:
        return _KINDS.get(kind, Trouble.OTHER)
    answered = isinstance(error, HttpResponseError) and error.response is not None
    return Trouble.BUSY if answered else Trouble.UNREACHABLE
