"""The servers, each a process of its own, and the records in the hub."""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import msgspec
from azure.storage.blob import BlobServiceClient
from msgspec import Struct

from devstack.cosmos.server import DEFAULT_KEY
from devstack.processes.azurite import Azurite
from devstack.processes.child import ChildProcess
from devstack.processes.node import ensure_node, ensure_packages

HUB, DATABASE, CONTAINER = "telemetry", "fleet", "readings"
PARTITIONS = 4
DEVICES = 100
"""Values of the partition key."""
RANGES = 10
"""Physical partitions of the container."""
WRITE_PRICE = 0.05
"""RU per KiB written: a hundredth of the usual, so that no cell is throttled."""
RECORD_BYTES = 1024

_APPENDED_AT_ONCE = 500


class World(Struct, frozen=True):
    """What a cell is told. It is run in a process of its own."""

    event_hubs: str
    """Connection string."""
    cosmos: str
    """Endpoint."""
    storage: str
    """Connection string."""
    records: int
    """In the hub, dealt to its partitions."""

    @property
    def cosmos_connection(self) -> str:
        return f"AccountEndpoint={self.cosmos};AccountKey={DEFAULT_KEY};"


def document(number: int) -> dict[str, object]:
    """A reading of 1 KB as JSON, to the byte."""
    reading: dict[str, object] = {
        "id": f"reading-{number:08d}",
        "device": f"device-{number % DEVICES:03d}",
        "at": f"2026-11-21T08:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "celsius": 20.5 + number % 17,
        "ok": number % 50 != 0,
        "tags": ["north", "roof"],
        "position": {"latitude": 52.37, "longitude": 4.9},
        "note": "",
    }
    reading["note"] = "n" * (RECORD_BYTES - len(msgspec.json.encode(reading)))
    return reading


def bodies(numbers: range) -> list[bytes]:
    return [msgspec.json.encode(document(number)) for number in numbers]


@contextmanager
def running_world(
    records: int,
    *,
    ranges: int = RANGES,
    write_price: float = WRITE_PRICE,
    hubs: Mapping[str, int] | None = None,
) -> Iterator[World]:
    """Starts everything and fills the hub. `hubs` are further ones, with their numbers of partitions."""
    more = [f"--hub={name}:{partitions}" for name, partitions in (hubs or {}).items()]
    ensure_packages(ensure_node())
    with ExitStack() as stack:
        event_hubs = _started(
            stack, "Event Hubs", ["devstack.event_hubs", "--port=0", f"--hub={HUB}:{PARTITIONS}", *more]
        )
        cosmos = _started(
            stack,
            "Cosmos DB",
            [
                "devstack.cosmos",
                "--port=0",
                f"--database={DATABASE}",
                f"--container={CONTAINER}:/device:{ranges * 10_000}",
                f"--write-price={write_price}",
            ],
        )
        azurite = stack.enter_context(Azurite().running_blocking())
        world = World(event_hubs, cosmos, azurite.connection_string, records)
        fill(world, range(records))
        yield world


def fill(world: World, numbers: range) -> None:
    """Puts documents of these numbers into the hub."""
    for partition in range(PARTITIONS):
        mine = numbers[partition::PARTITIONS]
        for start in range(0, len(mine), _APPENDED_AT_ONCE):
            append(world, HUB, partition, bodies(mine[start : start + _APPENDED_AT_ONCE]))


def remove_containers(world: World) -> None:
    """Removes all blobs. A first start looks into every other container of its account, which takes 3 ms of CPU for each that an
    earlier cell left.
    """
    with BlobServiceClient.from_connection_string(world.storage) as service:
        for container in service.list_containers():
            service.delete_container(container.name)


def append(world: World, hub: str, partition: int, events: Sequence[bytes]) -> None:
    """Puts events, which are text, behind those of a partition."""
    endpoint = world.event_hubs.partition("sb://")[2].partition(";")[0].rstrip("/")
    texts = [body.decode() for body in events]
    call = {"call": "Append", "hub": hub, "partition": str(partition), "bodies": texts}
    request = urllib.request.Request(f"http://{endpoint}/control", msgspec.json.encode(call))
    with urllib.request.urlopen(request) as answer:
        answer.read()


def _started(stack: ExitStack, name: str, arguments: list[str]) -> str:
    """What the server says after "ready"."""
    child = ChildProcess(name, [sys.executable, "-m", *arguments])
    stack.callback(child.stop)
    child.start()

    def ready() -> str:
        return next((line[6:] for line in child.output_tail().splitlines() if line.startswith("ready ")), "")

    child.wait_until_ready(lambda: bool(ready()), timeout_s=30.0)
    time.sleep(0.1)  # the rest of the line
    return ready()
