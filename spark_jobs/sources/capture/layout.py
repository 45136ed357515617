"""Where Event Hubs Capture puts its files: hub, partition and time from a file's path. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from spark_jobs.sources.columns.event_columns import Origin
from spark_jobs.sources.files.path_times import FileFilter, Look, patterns
from tidemark.analysis.errors import InputError

DEFAULT = "{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}"
"""The format Capture has unless another is set; the file's ending follows it."""

ENDING = ".avro"

EARLY = timedelta(hours=1)
"""How much earlier than an event its file may be named: a window lasts a quarter of an hour at most."""

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
        self._pattern = re.compile(f"(?:^|/){_pattern_of(self.text)}{re.escape(ENDING)}$")
        folders = self.text.split("/")[:-1]
        self._folders = [
            re.compile(_pattern_of("/".join(folders[:depth]))) for depth in range(len(folders) + 1)
        ]

    def origin(self, path: str) -> Origin:
        """Of the file's events, by its path. Raises InputError for a path of another form."""
        match = self._pattern.search(path)
        if match is None:
            raise InputError(
                f"the file '{path}' is not named by the capture layout '{self.text}'; set the layout that the event"
                " hub has (its 'capture file name format')"
            )
        return Origin(match["EventHub"], match["PartitionId"], path)

    def look(self, first: str, wanted: FileFilter) -> Look:
        """Which folders and files may hold what is wanted. `first` is any file's path: it shows at which depth the layout
        begins. Raises InputError as `origin`.
        """
        self.origin(first)
        above = len(first.split("/")) - len(self._folders)

        def look(path: str) -> bool | None:
            inner = path.split("/")[above:]
            place = "/".join(inner)
            known = self._folders[len(inner)] if len(inner) < len(self._folders) else self._pattern
            match = known.search(place) if known is self._pattern else known.fullmatch(place)
            # Only a year proves that a folder is what its depth says: others may lie deeper than the first.
            units = match.groupdict() if match and "Year" in match.groupdict() else {}
            if not wanted.of_origin(units.get("EventHub"), units.get("PartitionId")):
                return False
            is_wanted = wanted.of_time(units, early=EARLY)
            # Above the folder of a hub or partition that is asked for, not all is wanted.
            return is_wanted if units.keys() >= {"EventHub", "PartitionId"} else is_wanted and None

        return look

    def globs(self, wanted: FileFilter, now: datetime) -> list[str]:
        """Patterns of the folders that `look` would choose, from wherever in the layout a path may begin, or some folders above
        it; none where all are wanted, or the time decides about no folder.
        """
        folders = self.text.split("/")[:-1]
        placed = [place for place, folder in enumerate(folders) if "{Year}" in folder]
        if not placed:
            return []
        hub = "*" if wanted.hub is None else "".join(_any_case(letter) for letter in wanted.hub)
        partitions = "{" + ",".join(wanted.partitions) + "}" if wanted.partitions else "*"
        texts = {"EventHub": hub, "PartitionId": partitions}
        return patterns(folders, texts, wanted.hours(now, early=EARLY), inside=placed[0])


def _pattern_of(layout: str) -> str:
    parts = re.split(r"\{(\w+)\}", layout)
    return "".join(
        _group(part, parts[1:index:2]) if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )


def _group(name: str, before: list[str]) -> str:
    return f"(?P={name})" if name in before else f"(?P<{name}>{_PATTERNS[name]})"


def _any_case(letter: str) -> str:
    return f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else letter
