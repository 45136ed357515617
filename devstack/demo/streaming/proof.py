"""Proof that no record was lost, from the hub's log, the container and the dead letters alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from devstack.cosmos.store.container import Container
from devstack.demo.streaming.world import Blobs, Position, bodies, flight_id
from devstack.event_hubs.storage.hubs import Hub
from tidemark.foundation.wording import count_text

_SHOWN = 5


class Proof(Struct, frozen=True):
    """What became of the records. `writes` are what the container carried out, replays included."""

    records: int
    distinct: int
    documents: int
    letters: int
    writes: int
    problems: tuple[str, ...] = ()
    lost: int = 0
    duplicates: int = 0

    @property
    def replayed(self) -> int:
        """Records written again, because nobody could know that they had been; their documents are the same."""
        return self.writes - self.documents

    @property
    def holds(self) -> bool:
        return not self.problems


async def prove(hub: Hub, container: Container, blobs: Blobs) -> Proof:
    """Compares every record with its document or its dead letter, byte for byte of what matters."""
    records = {position: body for partition in hub.partition_ids for position, body in bodies(hub, partition)}
    letters = {position: await blobs.letter(name) for position, name in (await blobs.letters()).items()}
    documents = [msgspec.json.decode(document.body) for _, document in container.documents()]
    writes = sum(key_range.lsn - 1 for key_range in container.map.ranges)
    return judge(records, documents, letters, writes)


def judge(
    records: Mapping[Position, bytes],
    documents: list[dict[str, Any]],
    letters: Mapping[Position, Mapping[str, Any]],
    writes: int,
) -> Proof:
    """Every record must be a document of the same content or, if it is no flight, a letter with its body."""
    expected = {name: body for body in records.values() if (name := flight_id(body)) is not None}
    poison = {position: body for position, body in records.items() if flight_id(body) is None}
    stored = {document["id"]: document for document in documents}
    missing = [name for name in expected if name not in stored]
    unburied = [position for position in poison if position not in letters]
    altered = [
        name for name in expected if name in stored and stored[name] != msgspec.json.decode(expected[name])
    ]
    garbled = [at for at in poison if at in letters and letters[at].get("body") != poison[at].decode()]
    seen = Counter(str(document["id"]) for document in documents)
    again = [name for name, count in seen.items() for _ in range(count - 1)]
    problems: list[tuple[str, str, Sequence[object]]] = [
        ("flight", "not in the container", missing),
        ("poison record", "not among the dead letters", unburied),
        ("document", "not what was sent", altered),
        ("dead letter", "not what was sent", garbled),
        ("document", "of no flight that was sent", [name for name in stored if name not in expected]),
        ("dead letter", "of no poison record", [position for position in letters if position not in poison]),
        ("document", "under an id that another one has", again),
    ]
    return Proof(
        records=len(records),
        distinct=len(expected),
        documents=len(documents),
        letters=len(letters),
        writes=writes,
        problems=tuple(_problem(*problem) for problem in problems if problem[-1]),
        lost=len(missing) + len(unburied),
        duplicates=len(again),
    )


class Account(Struct, frozen=True):
    """What consumers reported in their telemetry records: writes, and how many of them left no final report."""

    written: int
    instances: int
    without_end: int

    def beside(self, proof: Proof) -> str:
        """How it compares with what the container carried out."""
        said = f"the consumers' records have {self.written} of {proof.writes} writes"
        missing = proof.writes - self.written
        if not missing:
            return said
        return (
            f"{said}; {self.without_end} of {self.instances} consumers left no final report: what a killed one wrote after"
            " its last record is in no record, nor is a write whose answer never came"
        )


def account(folder: Path) -> Account:
    """Sums up the telemetry records of all consumers below a folder."""
    written, ended = 0, dict[str, bool]()
    for file in sorted(folder.rglob("*.jsonl"), key=lambda file: file.name):  # of an instance in their order
        for line in file.read_bytes().splitlines():
            record = msgspec.json.decode(line)
            if record["kind"] == "interval":
                written += record["written"]
                ended[record["instance"]] = record["stopping"]
    return Account(written, len(ended), sum(not was_killed for was_killed in ended.values()))


def _problem(noun: str, state: str, which: Sequence[object]) -> str:
    """`1 dead letter is not what was sent: ('1', 0)`."""
    some = ", ".join(str(one) for one in which[:_SHOWN])
    verb = "is" if len(which) == 1 else "are"
    return f"{count_text(len(which), noun)} {verb} {state}: {some}{', ...' if len(which) > _SHOWN else ''}"
