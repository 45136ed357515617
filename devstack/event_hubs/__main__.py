"""The server as a process of its own, so that it does not share a core with its clients.

    python -m devstack.event_hubs --port 5671 --hub flights:4

Prints one line, "ready <connection string>", when it listens, and runs until it is told to stop. Hubs and events
live as long as the process, with `--data` longer.
"""

import argparse
import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from devstack.event_hubs.operations import DEFAULT_PARTITIONS
from devstack.event_hubs.server import EventHubsServer
from devstack.event_hubs.storage.capture import CaptureSettings


def hub_argument(text: str) -> tuple[str, int]:
    """`name` or `name:partitions`. Raises argparse.ArgumentTypeError."""
    name, _, partitions = text.partition(":")
    if not name or not (partitions or "1").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}, accepted: name:partitions, for instance flights:4")
    return name, int(partitions or DEFAULT_PARTITIONS)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m devstack.event_hubs", description="A local Event Hubs namespace."
    )
    parser.add_argument("--port", type=int, default=5671, help="0 takes a free one (default: 5671)")
    parser.add_argument("--hub", type=hub_argument, action="append", default=[], metavar="NAME:PARTITIONS")
    parser.add_argument("--data", type=Path, help="a folder that keeps hubs and events")
    parser.add_argument("--capture", type=Path, help="a folder for the files of Event Hubs Capture")
    parser.add_argument(
        "--capture-seconds", type=int, default=300, help="how long a file takes (default: 300)"
    )
    return parser.parse_args(arguments)


async def serve(arguments: argparse.Namespace, folder: Path) -> None:
    """`folder` keeps the certificate for clients that want TLS."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    capture = None
    if arguments.capture is not None:
        capture = CaptureSettings(arguments.capture, every_seconds=arguments.capture_seconds)
    server = EventHubsServer(ca_dir=folder, port=arguments.port, data_dir=arguments.data, capture=capture)
    for name, partitions in arguments.hub:
        server.ensure_hub(name, partitions)
    async with server:
        print(f"ready {server.connection_string()}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        asyncio.run(serve(parse_arguments(), Path(temporary)))
