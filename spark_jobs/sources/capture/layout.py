"""Where Event Hubs Capture puts its files: hub and partition from a file's path. Pure."""

from __future__ import annotations

import re

from spark_jobs.errors import InputError
from spark_jobs.sources.columns.event_columns import Origin

DEFAULT = "{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}"
"""The format Capture has unless another is set; the file's ending follows it."""

ENDING = ".avro"

_NUMBERS = ("Year", "Month", "Day", "Hour", "Minute", "Second")
_PATTERNS = {
    "Namespace": "[^/]+",
    "EventHub": "[^/]+",
    "PartitionId": "[^/]+?",
    "Year": r"\d{4}",
    **dict.fromkeys(_NUMBERS[1:], r"\d{1,2}"),
}
_NEEDED = ("EventHub", "PartitionId", *_NUMBERS)  # as Capture itself asks for


class CaptureLayout:
    """A format of capture file names, as set at the event hub. Raises InputError naming what is missing."""

    def __init__(self, layout: str = DEFAULT) -> None:
        self.text = layout.removesuffix(ENDING).strip("/")
        parts = re.split(r"\{(\w+)\}", self.text)
        names = parts[1::2]
        unknown = sorted(set(names) - set(_PATTERNS))
        missing = [name for name in _NEEDED if name not in names]
        if unknown or missing:
            wrong = [*(f"unknown {{{name}}}" for name in unknown), *(f"no {{{name}}}" for name in missing)]
            raise InputError(
                f"the capture layout '{layout}' has {', '.join(wrong)}; a layout names "
                f"{', '.join(f'{{{name}}}' for name in _NEEDED)} and optionally {{Namespace}}, as in '{DEFAULT}'"
            )
        pattern = "".join(
            self._group(part, parts[1:index:2]) if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        )
        self._pattern = re.compile(f"(?:^|/){pattern}{re.escape(ENDING)}$")

    @staticmethod
    def _group(name: str, before: list[str]) -> str:
        return f"(?P={name})" if name in before else f"(?P<{name}>{_PATTERNS[name]})"

    def origin(self, path: str) -> Origin:
        """Of the file's events, by its path. Raises InputError for a path of another form."""
        match = self._pattern.search(path)
        if match is None:
            raise InputError(
                f"the file '{path}' is not named by the capture layout '{self.text}'; set the layout that the event"
                " hub has (its 'capture file name format')"
            )
        return Origin(match["EventHub"], match["PartitionId"], path)
