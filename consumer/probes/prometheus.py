"""The metrics of an instance as Prometheus reads them: its text format, version 0.0.4. Pure.

One line is `name{label="value"} number`. The instruments are those of `consumer.telemetry.instruments`; a counter ends in `_total`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import structs

from consumer.core.statistics import PipelineStatistics
from consumer.telemetry.instruments import BY_PARTITION, BY_REASON, INSTRUMENTS, Instrument
from consumer.telemetry.records import Identity

COUNTERS = ("counter", BY_REASON)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(
    identity: Identity, statistics: PipelineStatistics | None, gauges: Mapping[str, tuple[str, float]]
) -> str:
    """The metrics of an instance. `gauges` are further ones by name: description and value."""
    labels: dict[str, str] = structs.asdict(identity)
    lines: list[str] = []
    for name, (description, value) in gauges.items():
        lines += _family(name, "gauge", description, [(labels, value)])
    if statistics is not None:
        for instrument in INSTRUMENTS:
            samples = list(_samples(instrument, statistics, labels))
            name = instrument.name.replace(".", "_")
            if instrument.kind in COUNTERS:
                lines += _family(f"{name}_total", "counter", instrument.description, samples)
            elif samples:
                lines += _family(name, "gauge", instrument.description, samples)
    return "".join(lines)


def merged(texts: Iterable[str]) -> str:
    """The metrics of several instances as one text: the format wants all samples of a metric together."""
    families: dict[str, list[str]] = {}
    for text in texts:
        family: list[str] = []
        for line in text.splitlines(keepends=True):
            if line.startswith("# HELP"):
                family = families.setdefault(line.split(" ", 3)[2], [])
            if not line.startswith("#") or line not in family:
                family.append(line)
    return "".join(line for family in families.values() for line in family)


def _samples(
    instrument: Instrument, statistics: PipelineStatistics, labels: Mapping[str, str]
) -> Iterator[tuple[Mapping[str, str], float]]:
    if instrument.kind == BY_PARTITION:
        sources = [
            ({**labels, "partition": partition.partition}, instrument.read(partition))
            for partition in statistics.partitions
        ]
    elif instrument.kind == BY_REASON:
        counts = instrument.read(statistics.totals)
        sources = [({**labels, "reason": reason}, count) for reason, count in counts.items()]
    else:
        source = statistics.totals if instrument.kind == "counter" else statistics
        sources = [(dict(labels), instrument.read(source))]
    return ((names, float(value)) for names, value in sources if value is not None)


def _family(
    name: str, kind: str, description: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {_escaped(description)}\n"
    yield f"# TYPE {name} {kind}\n"
    for labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text, quote=True)}"' for label, text in labels.items())
        yield f"{name}{{{pairs}}} {value!r}\n"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n").replace("\r", " ")
    return text.replace('"', r"\"") if quote else text
