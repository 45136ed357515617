"""`tidemark checkpoints`: the positions of the consumer, and orders to continue somewhere else."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct
from rich.markup import escape

from consumer.cli import support
from consumer.cli.positions import (
    Effect,
    Export,
    Row,
    check_offset,
    effect_of,
    position_of,
    position_text,
    print_rows,
    read_export,
    row_of,
)
from consumer.cli.support import DEADLINE, Hub, Json, Root, Yes, console
from consumer.leasing.balance import partition_order
from consumer.leasing.claiming import incarnation_of
from consumer.leasing.start_position import Start, identity_of, is_of_hub, since_of
from consumer.model import NOTHING_SETTLED, Checkpoint, PartitionState
from consumer.ports import CheckpointStore
from consumer.receiving.until import epoch_seconds, first_event, read_numbers
from consumer.seeks import MOST_SEEKS, Seek
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.gathering import gather
from tidemark.foundation.http.deployed_options import account_here
from tidemark.foundation.log.terminal import print_json
from tidemark.foundation.wording import count_text

if TYPE_CHECKING:  # the SDK takes a second; --help needs none
    from consumer.receiving.receiver import HubReceiver
    from consumer.running.assembly import Parts

_AT_ONCE = 16  # partitions and positions; chosen, as for the states of a hub

OPERATOR = "operator"
"""The owner of a position that an operator has set."""


class NewPosition(Struct, frozen=True):
    """Where `set` puts partitions: after an event (-1: before the first), of each partition by `numbers`, at a time or at an
    offset; otherwise after the latest.
    """

    sequence_number: int | None = None
    time: float | None = None
    numbers: dict[str, int] | None = None
    offset: str | None = None


def show(root: Root = COMMAND_ROOT, hub: Hub = None, json_: Json = False) -> None:
    """Every partition: low-water mark, events settled beyond it, owner, age, lag."""

    async def work() -> tuple[Parts, list[Row]]:
        parts = support.open_parts(root, hub, dry_run=True)
        receiver = parts.receiver()
        stored, states = await _read(parts.checkpoints()), await _states(receiver)
        names = sorted({*stored, *states}, key=partition_order)
        return parts, [
            row_of(name, stored.get(name), states.get(name), receiver.created_at) for name in names
        ]

    parts, rows = support.run(work, support.asked((root, hub), "checkpoints"))
    if json_:
        print_json(rows)
    else:
        support.show_connections(parts, parts.config.checkpoints)
        print_rows(rows, time.time())


def export(root: Root = COMMAND_ROOT, hub: Hub = None) -> None:
    """All positions as JSON, for `set --from`."""

    async def work() -> Export:
        parts = support.open_parts(root, hub, dry_run=True)
        stored = await _read(parts.checkpoints())
        if bad := [f"partition {name}: {why}" for name, why in stored.items() if isinstance(why, str)]:
            raise TidemarkError("; ".join(bad))
        ordered = (stored[name] for name in sorted(stored, key=partition_order))
        checkpoints = tuple(checkpoint for checkpoint in ordered if isinstance(checkpoint, Checkpoint))
        return Export(parts.config.hub, parts.config.consumer_group, checkpoints)

    print_json(support.run(work, support.asked((root, hub), "checkpoints")))


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
    at: Annotated[
        str | None, typer.Option("--at", help="The last settled event of each: 0=500,1=700.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", help="From the event at this offset, of one --partition.")
    ] = None,
    from_: Annotated[Path | None, typer.Option("--from", help="A file that `export` wrote.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")
    ] = False,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Sets positions, backwards too. A running consumer loses the partition and continues at the new position.

    Reports for each partition how many events are skipped or written again. Who set it, when, from where and to where is
    stored with the position, and `show` prints it.
    """
    names_partitions = [value for value in (from_, at) if value is not None]
    given = [sequence_number is not None, earliest, latest, time_ is not None, offset is not None]
    if sum(given) + len(names_partitions) != 1:
        raise typer.BadParameter(
            "give one of --sequence-number, --earliest, --latest, --time, --at, --offset and --from"
        )
    if names_partitions and (partition or all_):
        raise typer.BadParameter("--from and --at name the partitions themselves")
    if not names_partitions and bool(partition) == all_:
        raise typer.BadParameter("give --partition (or several), or --all")
    if offset is not None and len(partition or []) != 1:
        raise typer.BadParameter("--offset needs one --partition: an offset is of one partition")
    settled = NOTHING_SETTLED if earliest else sequence_number
    numbers = None if at is None else _numbers(at)
    wanted = NewPosition(settled, None if time_ is None else _epoch_seconds(time_), numbers, offset)
    partition = list(numbers) if numbers is not None else partition
    file = None if from_ is None else read_export(from_)

    partitions, asked = partition or [], support.asked((root, hub), "checkpoints")
    _, dry_run = support.open_for(root, hub, dry_run=dry_run)

    def plan() -> list[Planned]:
        return support.run(lambda: _plan((root, hub), partitions, wanted, file), asked)

    planned = plan()
    _print_plan(planned, root, hub)
    if dry_run:
        console.print("dry run: nothing was changed")
        return
    if not yes:
        planned = _confirmed(planned, plan)
    support.run(lambda: _put((root, hub), [target for _, target, _ in planned]), asked)
    console.print(f"[green]set[/] {len(planned)}; a running consumer continues there by itself")


def _print_plan(planned: Sequence[Planned], root: Path, hub: str | None) -> None:
    _print_effects(planned)
    if any(effect.again for _, _, effect in planned) and (marked := _sinks_with_marks(root, hub)):
        console.print(
            f"the sinks {', '.join(marked)} keep a mark of their own, which this does not set back: they skip what they have",
            soft_wrap=True,
        )


def _print_effects(planned: Sequence[Planned]) -> None:
    for row, (target, _), effect in planned:
        where = f"{position_of(row)} -> {position_text(target)}"
        console.print(f"partition {escape(row.partition)}: {where}: {effect}", soft_wrap=True)


def _confirmed(planned: Sequence[Planned], plan: Callable[[], list[Planned]]) -> list[Planned]:
    """The positions as they are after the answer. Asks again where some would be behind a consumer that has gone on meanwhile."""
    while True:
        support.ask(f"Set {count_text(len(planned), 'position')}?", yes=False)
        agreed, now = {row.partition for row, _, effect in planned if effect.again}, plan()
        if agreed.issuperset(row.partition for row, _, effect in now if effect.again):
            return now
        console.print("the consumer has gone on meanwhile:")
        _print_effects(now)
        planned = now


Target = tuple[Checkpoint, int]
"""A new position, and the hub whose keys are plain if none is stored yet; see incarnation_of."""
Planned = tuple[Row, Target, Effect]
"""The stored position, the new one, and what it does."""


async def _plan(
    where: tuple[Path, str | None], partitions: Sequence[str], wanted: NewPosition, file: Export | None
) -> list[Planned]:
    """Changes nothing."""
    parts = support.open_parts(*where, dry_run=True)
    stored = await _read(parts.checkpoints())
    if file is not None and file.hub != parts.config.hub:
        raise TidemarkError(
            f"the file holds positions of hub '{file.hub}', the settings name '{parts.config.hub}'"
        )
    receiver = parts.receiver()
    try:
        states = await receiver.states()
        targets = [
            _of_hub(receiver, target, stored, states)
            for target in await _targets(receiver, partitions, wanted, stored, states, file)
        ]
    finally:
        await receiver.close()
    planned = []
    for target, first in targets:
        state = states[target.partition]
        row = row_of(target.partition, stored.get(target.partition), state, receiver.created_at)
        # A position in the hub before settles no event of this one.
        effect = effect_of(None if row.foreign else stored.get(target.partition), target, state)
        planned.append((row, (target, first), effect))
    return planned


async def _put(where: tuple[Path, str | None], targets: Sequence[Target]) -> None:
    store = support.open_parts(*where).checkpoints()
    try:
        stored = await store.load_all(deadline=support.soon())
        for target in targets:
            await _put_one(store, target, stored)
    finally:
        await store.aclose()


async def _put_one(
    store: CheckpointStore, target: Target, everything: Mapping[str, Checkpoint | str]
) -> None:
    position, first = target
    others = everything.values()
    incarnation = await incarnation_of(store, position.origin.hub, first=first, others=others)
    origin = msgspec.structs.replace(position.origin, incarnation=incarnation)
    position = msgspec.structs.replace(position, owner=OPERATOR, origin=origin)
    await store.put(position, deadline=support.soon())


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
            return await receiver.states()
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
    states: Mapping[str, PartitionState],
    file: Export | None,
) -> list[Checkpoint]:
    """Raises TidemarkError for a position that the hub does not have."""
    asked = partitions if file is None else [checkpoint.partition for checkpoint in file.checkpoints]
    if unknown := [name for name in asked if name not in states]:
        raise TidemarkError(
            f"the hub has no partition {', '.join(unknown)}; it has {', '.join(sorted(states, key=partition_order))}"
        )
    if file is not None:
        return list(file.checkpoints)

    async def target(name: str) -> Checkpoint:
        return await _target(receiver, states[name], wanted, stored.get(name))

    return await gather(target, sorted(partitions or states, key=partition_order), at_once=_AT_ONCE)


def _of_hub(
    receiver: HubReceiver,
    target: Checkpoint,
    everything: Mapping[str, Checkpoint | str],
    states: Mapping[str, PartitionState],
) -> Target:
    """The target with the hub that it belongs to, so that the consumer trusts it. Raises TidemarkError if it belongs to another
    hub of the name.
    """
    hub, stored = identity_of(receiver.created_at), everything.get(target.partition)
    state = states[target.partition]
    if not is_of_hub(target, state, receiver.created_at):
        raise TidemarkError(
            f"the position of partition {target.partition}, {target.sequence_number}, is of another hub: this one was created"
            f" at another time, or its last event, {state.last_sequence_number}, is before it; accepted: positions of this"
            " hub, or --earliest, --latest, --time, --sequence-number"
        )
    before = hub
    if isinstance(stored, Checkpoint):
        before = stored.origin.hub or (hub if is_of_hub(stored, state, receiver.created_at) else 0)
    since = since_of(everything.values(), hub)
    since = time.time() if since is None else since
    partitions = target.origin.partitions or len(states)
    number = stored.sequence_number if isinstance(stored, Checkpoint) else None
    orders = stored.origin.seeks if isinstance(stored, Checkpoint) else ()
    order = Seek(_operator(), time.time(), number, target.sequence_number)
    origin = msgspec.structs.replace(
        target.origin,
        seeks=(*orders, order)[-MOST_SEEKS:],
        hub=hub,
        partitions=partitions,
        since=since,
    )
    return msgspec.structs.replace(target, origin=origin), before


async def _target(
    receiver: HubReceiver, state: PartitionState, wanted: NewPosition, stored: Checkpoint | str | None
) -> Checkpoint:
    partition = state.partition
    last = Checkpoint(partition, state.last_sequence_number, state.last_offset)
    start = None
    if wanted.time is not None:
        if state.empty or wanted.time > state.last_enqueued_at:
            return last
        start = Start(time=wanted.time, inclusive=True)
    elif wanted.offset is not None:
        if wanted.offset == last.offset:
            return Checkpoint(partition, last.sequence_number - 1, "")
        check_offset(state, wanted.offset)
        start = Start(offset=wanted.offset, inclusive=True)
    if start is not None:
        epoch = stored.epoch if isinstance(stored, Checkpoint) else 0
        return Checkpoint(partition, await first_event(receiver, partition, start, epoch + 1) - 1, "")
    settled = last.sequence_number if wanted.sequence_number is None else wanted.sequence_number
    if wanted.numbers is not None:
        settled = wanted.numbers[partition]
    if settled > last.sequence_number:
        raise TidemarkError(
            f"partition {partition} ends at event {last.sequence_number}; accepted: -1 to {last.sequence_number}, "
            f"found {settled}"
        )
    return last if settled == last.sequence_number else Checkpoint(partition, settled, "")


def _sinks_with_marks(root: Path, hub: str | None) -> list[str]:
    parts: object = support.open_parts(root, hub)
    return list(getattr(parts, "sinks_with_marks", ()))  # the parts of tests have no sinks


def _operator() -> str:
    """Who gives the order, as far as the machine knows."""
    return f"{account_here()}@{socket.gethostname()}"


def _numbers(text: str) -> dict[str, int]:
    try:
        return read_numbers(text)
    except ValueError:
        raise typer.BadParameter(
            f"--at is '{text}', accepted: a number of each partition, such as 0=500,1=700; -1 is the beginning"
        ) from None


def _epoch_seconds(text: str) -> float:
    try:
        return epoch_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; expected a time such as 2026-11-21T08:00:00Z") from None
