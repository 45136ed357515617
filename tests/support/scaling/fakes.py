"""In-memory stores and queues with the semantics of the adapters; tests/conformance holds both to it.

Every port call runs `before(name)` and `after(name)`, with names such as `state.save`: a hook that raises is
a crash (or an outage) before, or after, the call took effect. `None` does nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from scaling.drains.view import DRAINING, drain_columns
from scaling.log_entry import LogEntry
from scaling.model import Controls, TargetState
from scaling.notice import Notice, QueuedNotice
from scaling.ports import LogPage, PoisonMessage, Snapshot
from scaling.storage.decision_log import Position, check_limit, decode_position, encode_position, rows_after
from scaling.storage.poison_queues import shown
from scaling.storage.rows import (
    CorruptRowError,
    controls_row,
    log_row,
    log_row_key,
    read_controls,
    read_log_row,
    read_target,
    target_row,
)
from scaling.window import Window
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.keys import after, key_of

Hook = Callable[[str], None]


class Hooked:
    """Base of all fakes: counts calls by name and runs the hooks around them."""

    def __init__(self, *, before: Hook | None = None, after: Hook | None = None) -> None:
        self.before = before
        self.after = after
        self.calls: list[str] = []
        self.closed = False

    @contextmanager
    def call(self, name: str):
        self.calls.append(name)
        if self.before:
            self.before(name)
        yield
        if self.after:
            self.after(name)

    async def aclose(self) -> None:
        self.closed = True


class MemoryStateStore(Hooked):
    """Rows as the adapter encodes them, by target and name; `corrupt` and `rows` are there to be tampered with."""

    def __init__(self, *, before: Hook | None = None, after: Hook | None = None) -> None:
        super().__init__(before=before, after=after)
        self.rows: dict[str, dict[str, tuple[str, dict]]] = {}
        self.aside: dict[tuple[str, str, str], dict] = {}
        self._tags = count(1)

    async def load(self, target: str) -> Snapshot:
        with self.call("state.load"):
            return self._load(target)

    async def load_all(self, targets) -> dict[str, Snapshot]:
        with self.call("state.load_all"):
            return {target: self._load(target) for target in targets}

    def _load(self, target: str, *, only: str = "") -> Snapshot:
        state, controls, windows = TargetState(), Controls(), {}
        etags, corrupt = {}, []
        for name, (etag, row) in sorted(self.rows.get(target, {}).items()):
            if only and name != only:
                continue
            if name == "drain" and row["State"] != DRAINING:
                continue
            etags[name] = etag
            unreadable = ()
            if name == "state":
                state, windows, unreadable = read_target(row)
            elif name == "controls":
                try:
                    controls = read_controls(row)
                except CorruptRowError:
                    unreadable = (name,)
            if unreadable:
                self.set_aside(target, name)
                corrupt.extend(unreadable)
        return Snapshot(target, state, windows, controls, etags, tuple(corrupt))

    async def save(
        self, loaded: Snapshot, state: TargetState, windows: Mapping[str, Window] | None = None
    ) -> None:
        with self.call("state.save"):
            row = target_row(loaded.target, state, loaded.windows if windows is None else windows)
            self.put(loaded.target, "state", row, loaded.etags.get("state"))
            stale = loaded.state.drain is None and "drain" in loaded.etags
            if state.drain != loaded.state.drain or stale:
                self.rows[loaded.target]["drain"] = (f"tag-{next(self._tags)}", dict(drain_columns(state)))

    async def load_controls(self, target: str) -> Snapshot:
        with self.call("controls.load"):
            return self._load(target, only="controls")

    async def save_controls(self, loaded: Snapshot, controls: Controls) -> None:
        with self.call("controls.save"):
            self.put(loaded.target, "controls", controls_row(controls), loaded.etags.get("controls"))

    def put(self, target: str, name: str, row: Mapping, guard: str | None) -> None:
        stored = self.rows.setdefault(target, {})
        if (stored[name][0] if name in stored else None) != guard:
            raise ConflictError(f"row '{name}' of '{target}' changed since it was read")
        stored[name] = (f"tag-{next(self._tags)}", dict(row))

    def set_aside(self, target: str, name: str) -> None:
        etag, row = self.rows[target][name]
        self.aside[target, name, etag] = row


class MemoryDecisionLog(Hooked):
    """Log rows as the adapter encodes them, by partition and row key."""

    def __init__(self, *, before: Hook | None = None, after: Hook | None = None) -> None:
        super().__init__(before=before, after=after)
        self.rows: dict[tuple[str, str], dict] = {}

    async def append(self, entries: Sequence[LogEntry]) -> None:
        with self.call("log.append"):
            for entry in entries:
                key = (key_of(entry.target), log_row_key(entry.at, entry.key))
                self.rows[key] = {"PartitionKey": key[0], "RowKey": key[1], **log_row(entry)}

    async def read(
        self,
        target: str | None = None,
        *,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        continuation: str | None = None,
        changes: bool = False,
        inputs: bool = False,
    ) -> LogPage:
        with self.call("log.read"):
            check_limit(limit)
            position = decode_position(continuation, target) if continuation else None
            keys = sorted(self.rows, key=lambda key: (key[1][:18], key[0], key[1]))
            if target is not None:
                keys = [key for key in keys if key[0] == key_of(target)]
            if since is not None:
                keys = [key for key in keys if key[1] < after(since)]
            if until is not None:
                keys = [key for key in keys if int(key[1][:18]) >= int(after(until)) - 1]
            if changes:
                keys = [key for key in keys if self.rows[key]["Kind"] != "decision"]
            if position is not None:
                keys = [key for key in keys if _is_after(position, *key)]
            page = keys[:limit]
            more = encode_position(Position(target, *page[-1])) if len(keys) > limit else None
            return LogPage(tuple(read_log_row(self.rows[key], inputs=inputs) for key in page), more)

    async def get(self, target: str, at: float, key: str) -> LogEntry | None:
        with self.call("log.get"):
            try:
                row = self.rows.get((key_of(target), log_row_key(at, key)))
            except ValueError:
                return None
            return None if row is None else read_log_row(row, inputs=True)

    async def purge(self, *, before: float) -> int:
        with self.call("log.purge"):
            old = [key for key in sorted(self.rows) if key[1] >= after(before)]
            for key in old:
                del self.rows[key]
            return len(old)


def _is_after(position: Position, partition: str, row: str) -> bool:
    comparison, first = rows_after(position, partition)
    return row > first if comparison == "gt" else row >= first


class MemoryPoisonQueues(Hooked):
    """Poison messages by queue name (without the suffix); a queue that is not there holds none."""

    def __init__(
        self, *, queues: Sequence[str] = (), before: Hook | None = None, after: Hook | None = None
    ) -> None:
        super().__init__(before=before, after=after)
        self.queues = queues
        self.messages: dict[str, list[tuple[float | None, str]]] = {}

    async def peek(self, limit: int = 16) -> tuple[int, Sequence[PoisonMessage]]:
        with self.call("poison.peek"):
            stored = {name: self.messages.get(name, []) for name in self.queues}
            in_turn = [
                PoisonMessage(
                    f"{name}-poison", f"{name}-{index}", stored[name][index][0], shown(stored[name][index][1])
                )
                for index in range(max(map(len, stored.values()), default=0))
                for name in self.queues
                if index < len(stored[name])
            ]
            return sum(map(len, stored.values())), in_turn[:limit]

    async def put(self, queue: str, body: str) -> None:
        with self.call("poison.put"):
            self.messages.setdefault(queue, []).append((None, body))


class MemoryOutbox(Hooked):
    """Letters by webhook and the id of their notice."""

    def __init__(self, *, before: Hook | None = None, after: Hook | None = None) -> None:
        super().__init__(before=before, after=after)
        self.rows: dict[str, dict[str, QueuedNotice]] = {}

    async def put(self, webhook: str, notices: Sequence[Notice], *, now: float) -> None:
        for notice in notices:
            with self.call("outbox.put"):
                self.rows.setdefault(webhook, {}).setdefault(notice.id, QueuedNotice(notice, now))

    async def waiting(self, webhook: str) -> Sequence[QueuedNotice]:
        with self.call("outbox.waiting"):
            return [letter for letter in self.rows.get(webhook, {}).values() if not letter.done]

    async def save(self, webhook: str, letters: Sequence[QueuedNotice]) -> None:
        with self.call("outbox.save"):
            assert len(letters) <= 100
            self.rows.setdefault(webhook, {}).update((letter.notice.id, letter) for letter in letters)

    async def forget(self, webhook: str, *, before: float) -> int:
        with self.call("outbox.forget"):
            rows = self.rows.get(webhook, {})
            old = [key for key, letter in rows.items() if letter.done and letter.put_at < before][:100]
            for key in old:
                del rows[key]
            return len(old)
