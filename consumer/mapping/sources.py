"""Where a column of a table gets its value from: the document, or the event itself. Pure.

- a path into the document: `$.carrier`, `$.flight.number`, or `/flight/number` for names with dots;
- the event: `@body` (the JSON text), `@topic` (namespace/hub), `@partition`, `@sequence_number`, `@offset`, `@enqueued_at`,
  `@partition_key`, `@incarnation`, and `@index`: which document of the event it is, from 0. A document that a decoder or a
  transform made takes the place of the body.

`@incarnation` is '' in the first hub of a name; in a hub that was created anew it is the creation time, as text.
"""

from __future__ import annotations

from collections.abc import Mapping

from consumer.mapping.paths import Path, parse_path
from tidemark.foundation.errors import SettingsError

EVENT_SOURCES = (
    *("body", "topic", "partition", "sequence_number", "offset", "enqueued_at", "partition_key"),
    *("incarnation", "index"),
)


def parse_source(column: str, text: str) -> Path | str:
    """A path into the document, or the name of a property of the event. Raises SettingsError."""
    if text.startswith("$.") and all(names := text[2:].split(".")):
        return tuple(names)
    if text.startswith("/"):
        return parse_path(text)
    if text.startswith("@") and text[1:] in EVENT_SOURCES:
        return text[1:]
    raise SettingsError(
        f"the source '{text}' of column '{column}' is not known; accepted: $.name, $.name.name, /name/name, "
        f"{', '.join('@' + name for name in EVENT_SOURCES)}"
    )


def check_sources(sources: Mapping[str, str]) -> None:
    """Raises SettingsError with all sources that are not known."""
    problems = []
    for name, text in sources.items():
        try:
            parse_source(name, text)
        except SettingsError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
