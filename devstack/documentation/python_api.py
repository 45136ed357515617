"""The pages on the Python API: every public name with the first sentence of its docstring.

Behind each table stand comments from which the site makes the whole description, with signatures and methods.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
HOW = "`make reference` writes this page from the docstrings; on the site, each name has its signature and methods below the table."


class ApiPage(Struct, frozen=True):
    """One page. `names` are those of one module, or paths such as `scaling.model.Verdict`."""

    title: str
    lead: str
    names: tuple[str, ...]

    def text(self) -> str:
        return (
            "\n".join(
                [
                    f"# {self.title}\n\n{self.lead}\n\n{HOW}\n",
                    "| name | what it is |",
                    "|---|---|",
                    *(_row(name) for name in self.names),
                    "",
                    *(f"<!-- ::: {name} -->\n" for name in self.names),
                ]
            ).rstrip()
            + "\n"
        )


def _row(path: str) -> str:
    module, _, name = path.rpartition(".")
    documented = getattr(import_module(module), name)
    source = Path(inspect.getfile(documented)).relative_to(ROOT).as_posix()
    return f"| [`{name}`](../../{source}) | {first_sentence(documented, path)} |"


def first_sentence(documented: object, path: str) -> str:
    """The first sentence of the docstring. Raises ValueError where a public name has none."""
    docstring = vars(documented).get("__doc__") if isinstance(documented, type) else documented.__doc__
    if not docstring:
        raise ValueError(f"{path} is public and has no docstring")
    text = " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s(?=[A-Z`(*])", text)[0].replace("|", "\\|")


def _of(module: str, names: Iterable[str] = ()) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in (names or import_module(module).__all__))


PAGES: Mapping[str, ApiPage] = {
    "publisher": ApiPage(
        "`tidemark.publisher`",
        "What a program imports that publishes [events](../publishing.md) or sends [messages](../publishing-service-bus.md).",
        tuple(sorted(_of("tidemark.publisher"), key=lambda name: name.endswith("Error"))),
    ),
    "transforms": ApiPage(
        "`tidemark.consuming`",
        "What a [transform](../consuming.md#what-a-transform-returns) of the consumer imports.",
        _of("tidemark.consuming"),
    ),
    "rules": ApiPage(
        "For rules",
        "What a [rule of your own](../adding-a-rule.md) imports.",
        (
            *_of("scaling.rules"),
            *_of("scaling.window", ["Summary"]),
            *_of("scaling.model", ["Verdict", "Evidence", "Reason", "Capacity"]),
            *_of("scaling.flip", ["Flip", "Condition"]),
        ),
    ),
    "collectors": ApiPage(
        "For collectors and scalers",
        'What a [collector of your own](../adding-a-collector.md) imports, and what a scaler of your own (`scaler = "module:Class"`) imports.',
        (
            *_of("scaling.ports", ["Collector", "Reading", "CollectError"]),
            "scaling.collectors.matching.Matching",
            "scaling.collectors.azure_entity.AzureEntityCollector",
            *_of("scaling.ports", ["Scaler", "ScalerError"]),
            *_of("scaling.model", ["ScaleAction", "Effect", "EffectOutcome"]),
        ),
    ),
    "sinks": ApiPage(
        "For sinks",
        "What a [sink of your own](../adding-a-sink.md) imports, and the suite of tests that it must pass.",
        (
            *_of("consumer.sinks.types", ["SinkType", "SinkContext"]),
            *_of("consumer.ports", ["Sink", "OrderedSink", "TransactionalSink"]),
            *_of(
                "consumer.model",
                [
                    "Event",
                    "Write",
                    "Operation",
                    "PatchStep",
                    "Record",
                    "Rejection",
                    "Batch",
                    "WriteResult",
                    "Outcome",
                    "Routes",
                    "Claim",
                    "Stream",
                ],
            ),
            *_of("consumer.mapping.documents", ["read_object", "rejected"]),
            *_of("consumer.sinks.appending", ["AppendingSink", "AppendLog"]),
            *_of("consumer.errors", ["FencedError"]),
            *_of("tidemark.foundation.errors", ["SettingsError", "UnavailableError"]),
            *_of("tidemark.testing"),
        ),
    ),
}
