"""The user's function: named as `module:function`, and what it may return (tidemark.consuming)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from consumer.mapping.preparing import MapDocuments
from consumer.model import Dropped, Event, Mapped, Operation, PatchStep, Rejection, Write
from tidemark import consuming
from tidemark.foundation.errors import SettingsError

Transform = Callable[[Any, Event], Any]
"""Gets a document and its event. It may change and return the document; see tidemark.consuming for other results. It is not
called for an event without a body.
"""

ELEMENT_BITS = 20
"""Bits of Write.index for the position in a list: an event of 1 MB decodes to fewer than 2^20 documents."""


def load_transform(name: str) -> Transform:
    """The function that a setting names. Raises SettingsError if it cannot be imported or called."""
    module_name, separator, function_name = name.partition(":")
    if not (module_name and separator and function_name):
        raise SettingsError(f"the transform '{name}' is not known; expected module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except AttributeError:
        raise SettingsError(
            f"the transform '{name}': module '{module_name}' has no '{function_name}'"
        ) from None
    except Exception as error:  # the user's module may raise anything while it is imported
        raise SettingsError(
            f"the transform '{name}': its module cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise SettingsError(
            f"the transform '{name}' is no function; expected transform(document, event) -> mapping"
        )
    return cast("Transform", function)


def mapping_of(transform: Transform) -> MapDocuments:
    """Writes of the documents of an event, as the user's function makes them."""

    def map_documents(event: Event, documents: Sequence[Any]) -> Mapped:
        results: list[Write | Dropped | Rejection] = []
        for number, document in enumerate(documents):
            results += _results_of(transform, document, event, number << ELEMENT_BITS)
        return results

    return map_documents


def _results_of(
    transform: Transform, document: Any, event: Event, index: int
) -> list[Write | Dropped | Rejection]:
    if document is None:  # a tombstone, which the sink takes as it is
        return [Write(event, index=index)]
    try:
        result = transform(document, event)
    except MemoryError:  # the machine's fault, not the event's
        raise
    except Exception as error:  # the user's code may raise anything
        return [Rejection("transform", f"the transform raised {type(error).__name__}: {error}")]
    if not isinstance(result, list | tuple):
        return [_result_of(result, event, index)]
    if not result:
        why = "the transform returned an empty list; to write nothing on purpose, return tidemark.consuming.drop(reason)"
        return [Rejection("transform", why)]
    return [_result_of(one, event, index + position) for position, one in enumerate(result)]


def _result_of(result: Any, event: Event, index: int) -> Write | Dropped | Rejection:
    match result:
        case consuming.Drop():
            return Dropped(result.reason)
        case consuming.Change():
            steps = tuple(PatchStep(step.op, step.path, step.value) for step in result.steps)
            return Write(
                event,
                dict(result.document),
                index,
                result.sink,
                Operation(result.operation),
                steps,
                result.ttl,
                result.id,
                result.version,
            )
        case dict():
            return Write(event, result, index)
        case Mapping():
            return Write(event, dict(result), index)
    return Rejection("transform", f"the transform returned a {type(result).__name__}; expected a mapping")
