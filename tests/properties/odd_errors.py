"""Exceptions of every kind, also those that nobody thought of: what the shells are tried with."""

import asyncio
import builtins
import warnings
from functools import partial

import msgspec
from azure.core import exceptions as azure
from hypothesis import strategies as st

from scaling import ports
from scaling.service.messages import MessageError
from scaling.storage.rows import CorruptRowError
from tidemark.foundation.keys import TooLargeError

WORDS = "odd words"


class UnprintableError(Exception):
    """It fails to tell what is wrong, too."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _made(kind: type[Exception]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return kind(WORDS)
        except (TypeError, AttributeError):
            return None


_KINDS = [
    *(kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    *(kind for kind in vars(azure).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    *(kind for kind in vars(ports).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    asyncio.InvalidStateError,
    asyncio.QueueFull,
    msgspec.ValidationError,
    MessageError,
    CorruptRowError,
    TooLargeError,
    UnprintableError,
]
MAKERS = [
    *(partial(_made, kind) for kind in dict.fromkeys(_KINDS) if _made(kind) is not None),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, WORDS),
    lambda: ExceptionGroup(WORDS, [ValueError("one"), OSError("two")]),
    lambda: ValueError("a lone \udc80 surrogate"),
    lambda: RuntimeError("long " * 50_000),
]

odd_errors = st.sampled_from(MAKERS).map(lambda make: make())


def chain(error: BaseException) -> str:
    """The error with its causes, as the host shows them."""
    texts = []
    while error is not None:
        texts.append(repr(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def is_told(error: Exception, told: str) -> bool:
    return type(error).__name__ in told or WORDS in told or isinstance(error, TimeoutError | StopIteration)
