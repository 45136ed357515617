"""A list of steps as one function, from a document of an event to the documents that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from consumer.mapping.steps.fields import Split
from consumer.mapping.steps.options import Apply
from consumer.mapping.steps.paths import WrongTypeError
from consumer.model import Dropped, Event, Rejection

ELEMENT_BITS = 20
"""An index has so many bits for each split. An event of 1 MB has fewer than 2^19 elements, since each takes two bytes."""
MOST_SPLITS = 2
"""Splits one after the other, so that an index stays below 2^60 with a decoder that gives several documents."""


class Step(Struct, frozen=True):
    """`name` is for messages."""

    name: str
    apply: Apply


class Document(Struct, frozen=True):
    """A document on its way, or what became of it instead. A `value` of None is a tombstone: nothing is left but the key.

    `index` is its position in the event, and in lists that were split: it does not depend on which others were dropped.
    """

    index: int
    value: Any

    @property
    def is_over(self) -> bool:
        return isinstance(self.value, Dropped | Rejection)


NO_ELEMENTS = Dropped("no_elements")
"""A list that is split and has no elements asks for nothing."""


def run_steps(steps: Sequence[Step], document: Document, event: Event) -> list[Document]:
    """What a document becomes, in order; one of the results at least. Steps leave tombstones as they are."""
    documents = [document]
    for step in steps:
        following: list[Document] = []
        for one in documents:
            if one.value is None or one.is_over:
                following.append(one)
            else:
                following += _stepped(step, one, event)
        documents = following
    return documents


def _stepped(step: Step, document: Document, event: Event) -> list[Document]:
    try:
        value = step.apply(document.value, event)
    except WrongTypeError as error:
        return [Document(document.index, Rejection("step", f"{step.name}: {error}"))]
    if not isinstance(value, Split):
        return [Document(document.index, value)]
    if len(value.documents) >= 1 << ELEMENT_BITS:
        count = f"{len(value.documents):,} elements; fewer than {1 << ELEMENT_BITS:,} are accepted"
        return [Document(document.index, Rejection("step", f"{step.name}: {count}"))]
    first = document.index << ELEMENT_BITS
    return [Document(first + place, element) for place, element in enumerate(value.documents)] or [
        Document(document.index, NO_ELEMENTS)
    ]
