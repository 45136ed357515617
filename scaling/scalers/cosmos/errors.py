"""What went wrong in a call about throughput, on either plane, by who must act."""

from __future__ import annotations

import re

from msgspec import structs

from scaling.scalers.arm import errors as arm_errors
from scaling.scalers.arm.errors import Failure, Kind
from scaling.scalers.carrying_out import Range

_RANGE = re.compile(r"values between (\d+) and (\d+)")
_MINIMUM = re.compile(r"less than required minimum throughput (\d+)")
_NOISE = re.compile(r"(\\r|\\n|\r|\n|\s*,?\s*ActivityId:).*", re.DOTALL)


def classify(error: Exception) -> Failure:
    """The failure behind an SDK error; 423 means that another change is being carried out."""
    failure = arm_errors.classify(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    kind = Kind.BUSY if status == 423 else failure.kind
    story = _NOISE.sub("", failure.story.replace('\\"', '"')).removeprefix("Message: ")
    return structs.replace(failure, kind=kind, story=story)


def accepted_range(story: str) -> Range | None:
    """The range named by a refusal of an amount; None for another refusal."""
    if found := _RANGE.search(story):
        return Range(int(found[1]), int(found[2]))
    if found := _MINIMUM.search(story):
        return Range(int(found[1]))
    return None
