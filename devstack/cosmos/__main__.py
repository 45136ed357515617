"""The server as a process of its own, so that it does not share a core with its clients.

    python -m devstack.cosmos --port 8081 --database flights --container flights:/origin:400

Prints one line, "ready <endpoint>", when it listens, and runs until it is told to stop.
"""

import argparse
import asyncio
import signal
from collections.abc import Sequence

from devstack.cosmos.partitions.budget import Prices
from devstack.cosmos.server import CosmosServer


def container_argument(text: str) -> tuple[str, str | list[str], int]:
    """`name:/path:RU`; several paths, joined by commas, make a hierarchical key.

    Raises argparse.ArgumentTypeError.
    """
    name, _, rest = text.partition(":")
    paths, _, amount = rest.partition(":")
    if not name or not paths.startswith("/") or not amount.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r}, accepted: name:/partitionKeyPath:RU, for instance flights:/origin:400"
        )
    several = paths.split(",")
    return name, several if len(several) > 1 else paths, int(amount)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m devstack.cosmos", description="A local Cosmos DB account."
    )
    parser.add_argument("--port", type=int, default=8081, help="0 takes a free one (default: 8081)")
    parser.add_argument("--database", default="flights", help="of the containers (default: flights)")
    parser.add_argument(
        "--container", type=container_argument, action="append", default=[], metavar="NAME:/PATH:RU"
    )
    parser.add_argument("--split-delay", type=float, default=1.0, help="seconds until partitions are split")
    parser.add_argument(
        "--write-price",
        type=float,
        default=Prices().write_per_kib,
        help="RU per KiB written; a small one lets one partition take a benchmark's load (default: %(default)s)",
    )
    parser.add_argument("--aad", action="store_true", help="accept bearer tokens, too")
    return parser.parse_args(arguments)


async def serve(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = CosmosServer(
        port=arguments.port,
        aad=arguments.aad,
        split_delay=arguments.split_delay,
        prices=Prices(write_per_kib=arguments.write_price),
    )
    server.create_database(arguments.database)
    for name, paths, throughput in arguments.container:
        server.create_container(arguments.database, name, paths, throughput=throughput)
    async with server:
        print(f"ready {server.endpoint}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve(parse_arguments()))
