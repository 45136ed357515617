"""`tidemark checkpoints`: the positions of the consumer, and orders to continue somewhere else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.markup import escape
from rich.table import Table

from consumer.cli import support
from consumer.cli.support import DEADLINE, Hub, Json, Root, Yes, console, fail, number, plain
from consumer.leasing.balance import partition_order
from consumer.leasing.claiming import incarnation_of
from consumer.leasing.start_position import Start, identity_of, is_of_hub, since_of
from consumer.model import NOTHING_SETTLED, Checkpoint, Event, PartitionState
from consumer.ports import CheckpointStore
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.log.terminal import print_json
from tidemark.foundation.wording import count_text, duration_text

if TYPE_CHECKING:  # the SDK takes a second; --help needs none
    from consumer.receiving.receiver import HubReceiver

OPERATOR = "operator"
"""The owner of a position that an operator has set."""


class Row(Struct, frozen=True):
    """A partition as shown."""

    partition: str
    checkpoint: Checkpoint | None = None
    unreadable: str | None = None
    lag: int | None = None
    """Events that are not settled; None if the hub or the checkpoint cannot be read."""


class Export(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of `export` and `set --from`."""

    hub: str
    consumer_group: str
    checkpoints: tuple[Checkpoint, ...]


class NewPosition(Struct, frozen=True):
    """Where `set` puts partitions: after an event (-1: before the first), or at a time; otherwise after the latest."""

    sequence_number: int | None = None
    time: float | None = None


def show(root: Root = COMMAND_ROOT, hub: Hub = None, json_: Json = False) -> None:
    """Every partition: low-water mark, events settled beyond it, owner, age, lag."""

    async def work() -> list[Row]:
        parts = support.open_parts(root, hub)
        stored, states = await _read(parts.checkpoints()), await _states(parts.receiver())
        names = sorted({*stored, *states}, key=partition_order)
        return [_row(name, stored.get(name), states.get(name)) for name in names]

    rows = support.run(work)
    if json_:
        print_json(rows)
    else:
        _print(rows, time.time())


def export(root: Root = COMMAND_ROOT, hub: Hub = None) -> None:
    """All positions as JSON, for `set --from`."""

    async def work() -> Export:
        parts = support.open_parts(root, hub)
        stored = await _read(parts.checkpoints())
        if bad := [f"partition {name}: {why}" for name, why in stored.items() if isinstance(why, str)]:
            raise TidemarkError("; ".join(bad))
        ordered = (stored[name] for name in sorted(stored, key=partition_order))
        checkpoints = tuple(checkpoint for checkpoint in ordered if isinstance(checkpoint, Checkpoint))
        return Export(parts.config.hub, parts.config.consumer_group, checkpoints)

    print_json(support.run(work))


def set_(
    partition: Annotated[list[str] | None, typer.Option(help="A partition; may be repeated.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All partitions of the hub.")] = False,
    sequence_number: Annotated[
        int | None, typer.Option(min=-1, help="The last settled event; -1: none.")
    ] = None,
    earliest: Annotated[bool, typer.Option("--earliest", help="Everything that the hub has.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="Only what comes from now on.")] = False,
    time_: Annotated[
        str | None, typer.Option("--time", help="From this time, as 2026-11-21T08:00:00Z.")
    ] = None,
    from_: Annotated[Path | None, typer.Option("--from", help="A file that `export` wrote.")] = None,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Sets positions, backwards too. A running consumer loses the partition and continues at the new position."""
    given = [sequence_number is not None, earliest, latest, time_ is not None, from_ is not None]
    if sum(given) != 1:
        raise typer.BadParameter("give one of --sequence-number, --earliest, --latest, --time and --from")
    if from_ is not None and (partition or all_):
        raise typer.BadParameter("--from names the partitions itself")
    if from_ is None and bool(partition) == all_:
        raise typer.BadParameter("give --partition (or several), or --all")
    settled = NOTHING_SETTLED if earliest else sequence_number
    wanted = NewPosition(settled, None if time_ is None else _epoch_seconds(time_))
    file = None if from_ is None else _file(from_)

    partitions = partition or []
    planned = support.run(lambda: _plan((root, hub), partitions, wanted, file))
    for row, target in planned:
        console.print(f"partition {escape(row.partition)}: {_position(row)} -> {_position_text(target)}")
    support.ask(f"Set {count_text(len(planned), 'position')}?", yes=yes)

    support.run(lambda: _put((root, hub), [target for _, target in planned]))
    console.print(f"[green]set[/] {len(planned)}; a running consumer continues there by itself")


async def _plan(
    where: tuple[Path, str | None], partitions: Sequence[str], wanted: NewPosition, file: Export | None
) -> list[tuple[Row, Checkpoint]]:
    """The stored positions, and the new ones."""
    parts = support.open_parts(*where)
    stored = await _read(parts.checkpoints())
    if file is not None and file.hub != parts.config.hub:
        raise TidemarkError(
            f"the file holds positions of hub '{file.hub}', the settings name '{parts.config.hub}'"
        )
    receiver, store = parts.receiver(), parts.checkpoints()
    try:
        targets = await _targets(receiver, partitions, wanted, stored, file)
        targets = [await _of_hub(store, receiver, target, stored) for target in targets]
    finally:
        await receiver.close()
        await store.aclose()
    return [(_row(target.partition, stored.get(target.partition), None), target) for target in targets]


async def _put(where: tuple[Path, str | None], targets: Sequence[Checkpoint]) -> None:
    store = support.open_parts(*where).checkpoints()
    try:
        for target in targets:
            await store.put(msgspec.structs.replace(target, owner=OPERATOR), deadline=support.soon())
    finally:
        await store.aclose()


def checkpoints_app() -> typer.Typer:
    """`show`, `set` and `export`."""
    app = typer.Typer(
        name="checkpoints", help="Positions of the consumer, per partition.", no_args_is_help=True
    )
    app.command()(show)
    app.command()(export)
    app.command("set")(set_)
    return app


async def _read(store: CheckpointStore) -> dict[str, Checkpoint | str]:
    try:
        return await store.load_all(deadline=support.soon())
    finally:
        await store.aclose()


async def _states(receiver: HubReceiver) -> dict[str, PartitionState]:
    """The states by partition; empty, with a message, if the hub cannot be reached."""
    try:
        async with asyncio.timeout(DEADLINE):
            names = await receiver.partitions()
            return {state.partition: state for state in await asyncio.gather(*map(receiver.state, names))}
    except (TidemarkError, TimeoutError) as error:
        support.errors.print(
            f"[yellow]the hub cannot be read, so no lag:[/] {escape(str(error) or 'no answer')}"
        )
        return {}
    finally:
        await receiver.close()


async def _targets(
    receiver: HubReceiver,
    partitions: Sequence[str],
    wanted: NewPosition,
    stored: Mapping[str, Checkpoint | str],
    file: Export | None,
) -> list[Checkpoint]:
    """Raises TidemarkError for a position that the hub does not have."""
    known = await receiver.partitions()
    if file is not None:
        return list(file.checkpoints)
    if unknown := [name for name in partitions if name not in known]:
        raise TidemarkError(
            f"the hub has no partition {', '.join(unknown)}; it has {', '.join(sorted(known, key=partition_order))}"
        )
    return [
        await _target(receiver, name, wanted, stored.get(name))
        for name in sorted(partitions or known, key=partition_order)
    ]


async def _of_hub(
    store: CheckpointStore,
    receiver: HubReceiver,
    target: Checkpoint,
    everything: Mapping[str, Checkpoint | str],
) -> Checkpoint:
    """The target with the hub that it belongs to, so that the consumer trusts it. Raises TidemarkError if it belongs to another
    hub of the name.
    """
    hub, stored = identity_of(receiver.created_at), everything.get(target.partition)
    state = await receiver.state(target.partition)
    if not is_of_hub(target, state, receiver.created_at):
        raise TidemarkError(
            f"the position of partition {target.partition}, {target.sequence_number}, is of another hub: this one was created"
            f" at another time, or its last event, {state.last_sequence_number}, is before it; accepted: positions of this"
            " hub, or --earliest, --latest, --time, --sequence-number"
        )
    before = hub
    if isinstance(stored, Checkpoint):
        before = stored.origin.hub or (hub if is_of_hub(stored, state, receiver.created_at) else 0)
    incarnation = await incarnation_of(store, hub, first=before, others=everything.values())
    since = since_of(everything.values(), hub)
    since = time.time() if since is None else since
    partitions = target.origin.partitions or len(await receiver.partitions())
    origin = msgspec.structs.replace(
        target.origin, hub=hub, partitions=partitions, incarnation=incarnation, since=since
    )
    return msgspec.structs.replace(target, origin=origin)


async def _target(
    receiver: HubReceiver, partition: str, wanted: NewPosition, stored: Checkpoint | str | None
) -> Checkpoint:
    state = await receiver.state(partition)
    last = Checkpoint(partition, state.last_sequence_number, state.last_offset)
    if wanted.time is not None:
        if state.empty or wanted.time > state.last_enqueued_at:
            return last
        epoch = stored.epoch if isinstance(stored, Checkpoint) else 0
        first = await _first_since(receiver, partition, wanted.time, epoch + 1)
        return Checkpoint(partition, first - 1, "")
    settled = last.sequence_number if wanted.sequence_number is None else wanted.sequence_number
    if settled > last.sequence_number:
        raise TidemarkError(
            f"partition {partition} ends at event {last.sequence_number}; accepted: -1 to {last.sequence_number}, "
            f"found {settled}"
        )
    return last if settled == last.sequence_number else Checkpoint(partition, settled, "")


async def _first_since(receiver: HubReceiver, partition: str, time: float, epoch: int) -> int:
    """The first event enqueued at or after the time, which only receiving shows. This takes the link from a running
    consumer, which is about to lose the partition anyway.
    """
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_events(events: Sequence[Event], _last: int | None) -> None:
        if events and not first.done():
            first.set_result(events[0].sequence_number)

    start = Start(time=time, inclusive=True)
    receiving = asyncio.create_task(receiver.receive(partition, start, epoch, on_events))
    try:
        either: set[asyncio.Future[Any]] = {receiving, first}
        await asyncio.wait(either, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
    finally:
        receiving.cancel()
        (outcome,) = await asyncio.gather(receiving, return_exceptions=True)
    if first.done():
        return first.result()
    if isinstance(outcome, TidemarkError):
        raise outcome
    raise UnavailableError(f"partition {partition} delivered no event within {DEADLINE:.0f} s")


def _row(partition: str, stored: Checkpoint | str | None, state: PartitionState | None) -> Row:
    if isinstance(stored, str):
        return Row(partition, unreadable=stored)
    if state is None:
        return Row(partition, stored)
    mark = stored.sequence_number if stored else NOTHING_SETTLED
    gone = max(mark, state.last_sequence_number if state.empty else state.begin_sequence_number - 1)
    beyond = sum(max(0, last - max(first, gone + 1) + 1) for first, last in (stored.beyond if stored else ()))
    return Row(partition, stored, lag=max(0, state.last_sequence_number - gone - beyond))


def _print(rows: Sequence[Row], now: float) -> None:
    table = Table("partition", "low-water", "offset", "beyond", "owner", "epoch", "age", "lag")
    for row in rows:
        checkpoint = row.checkpoint
        if checkpoint is None:
            table.add_row(row.partition, _position(row), "", "", "", "", "", number(row.lag))
            continue
        beyond = sum(last - first + 1 for first, last in checkpoint.beyond)
        age = duration_text(max(0.0, now - checkpoint.saved_at)) if checkpoint.saved_at else "?"
        runs = f"{beyond:,} in {len(checkpoint.beyond):,}" if beyond else "0"
        cells = map(plain, (_position(row), checkpoint.offset, runs, checkpoint.owner))
        table.add_row(row.partition, *cells, str(checkpoint.epoch), age, number(row.lag))
    console.print(table)
    for row in rows:
        if row.unreadable:
            problem = f"[red]partition {escape(row.partition)}:[/] {plain(row.unreadable)}"
            console.print(problem, soft_wrap=True)


def _position(row: Row) -> str:
    if row.unreadable:
        return "unreadable"
    return _position_text(row.checkpoint) if row.checkpoint else "none"


def _position_text(checkpoint: Checkpoint) -> str:
    settled = checkpoint.sequence_number
    return "the beginning" if settled == NOTHING_SETTLED else str(settled)


def _epoch_seconds(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; expected a time such as 2026-11-21T08:00:00Z") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _file(path: Path) -> Export:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Export)
    except (OSError, ValueError, RecursionError) as error:
        fail(f"{path} is no file of 'tidemark checkpoints export': {error}")
