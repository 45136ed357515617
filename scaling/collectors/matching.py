"""One metric of all entities whose names match a pattern, such as `queue = "orders-*"`: the sum of their counts, or the highest.

A collector reads each of them, as if it were configured by itself; those of one place share clients and lists. New entities
are found by a list of names; one is gone if its read says that it does not exist, and a list taken after that lacks it. A part is never taken for the whole: where one of
them cannot be read, the metric cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf
from typing import Annotated, Any, ClassVar, Literal, cast
from zlib import crc32

import msgspec
from msgspec import structs

from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, GoneError
from scaling.collectors.names import ENTITY, WILD, NameRule, problems_of_names
from scaling.model import Reason
from scaling.ports import CollectError, Reading
from tidemark.foundation.azure.opening import LazyClient
from tidemark.foundation.gathering import gather
from tidemark.foundation.wording import count_text

LISTED_EVERY = 55.0
"""Seconds between two lists of names. Chosen: at a reading a minute each has a new one, and the more frequent ones of ages do not."""

MOST = 1_000
"""Entities that one pattern may match. Chosen: what the lists of a namespace answer within a collection."""

AT_ONCE = 16
"""Entities that are read at the same time, where the class of their collectors has no `AT_ONCE` of its own; each may take a connection."""

HIGHEST = frozenset({"oldest_age", "max_partition_lag"})
"""Counts of which a sum says nothing."""


Combine = Literal["sum", "max"]
Empty = Annotated[float, msgspec.Meta(ge=0)] | None


class Matching:
    """What the options of a collector need, a Struct, whose option `NAMED` may be a pattern: `*` stands for any characters, `?` for one."""

    __slots__ = ()
    NAMED: ClassVar[str]
    NAMES: ClassVar[NameRule] = ENTITY
    """What `NAMED` may be called."""
    LISTING_ROLE: ClassVar[str]
    """The least role that may list the names."""

    combine: Combine
    empty: Empty

    @property
    def pattern(self) -> str:
        """Empty where one entity is named."""
        name = str(getattr(self, self.NAMED))
        return name if set(WILD) & set(name) else ""

    def name_problems(self) -> dict[str, str]:
        """What is wrong with the name, or the pattern, and with the options of a pattern."""
        if self.pattern:
            return problems_of_names(**{self.NAMED: self.NAMES.pattern_problem(self.pattern)})
        problem = self.NAMES.problem(str(getattr(self, self.NAMED)))
        text = f"is for a pattern, and {self.NAMED} has no * and no ?"
        return problems_of_names(
            **{self.NAMED: problem},
            combine=text if self.combine != "sum" else None,
            empty=text if self.empty is not None else None,
        )

    def lister(self, settings: Mapping[str, str]) -> Any:
        """A client that `listed` takes, with a coroutine `close`. Runs in a thread. Raises ValueError naming a bad setting."""
        raise NotImplementedError

    async def listed(self, client: Any) -> Sequence[tuple[str, Any]]:
        """The names that there are, and what the list returns of each for `AzureEntityCollector.describe`. A name may come twice."""
        raise NotImplementedError


class MatchingCollector:
    """Reads what matches with collectors of `cls`, of whose options `params` has the pattern."""

    def __init__(
        self, cls: type[Any], params: Matching, settings: Mapping[str, str], *, deadline: float = DEADLINE
    ) -> None:
        self._make = cls
        self._deadline = deadline
        self._params = params
        self._settings = settings
        self._first = self._make(params, settings)  # keeps the clients that the others share; is never read
        self.endpoint: str = self._first.endpoint
        self._lister: LazyClient[Any] = LazyClient(lambda: params.lister(settings))
        self._members: dict[str, AzureEntityCollector[Any]] = {}
        self._listed: set[str] = set()
        self._listed_at = -inf
        self._has_matched = False
        self._gone: set[str] = set()
        """Those whose read said that they do not exist, until a list that is taken after that shows it, too."""
        self._answered = 0
        self._finding = asyncio.Lock()

    @staticmethod
    def entity(params: Matching) -> str:
        """What is added to the key of the entity."""
        return f" {params.combine} empty {params.empty}" if params.pattern else ""

    async def collect(self, *, now: float) -> Reading:
        """Raises CollectError naming the pattern, and those that could not be read."""
        label = self._first.label
        try:
            async with asyncio.timeout(self._deadline):
                readings = await self._read_all(now)
        except TimeoutError:
            what = "no answer"
            if 0 < self._answered < len(self._members):
                what = f"{self._answered} of {len(self._members)} answered"
            raise CollectError(
                f"{label}: {what} within {self._deadline:g} s{', so divide them among more patterns' if self._answered else ''}"
            ) from None
        self._has_matched = self._has_matched or bool(readings)
        return (
            self._combined(label, readings) if readings else self._nothing(f"{label}: nothing matches", now)
        )

    async def _read_all(self, now: float) -> dict[str, Reading | CollectError]:
        self._answered = 0
        async with self._finding:
            if self._gone:  # the deadline came before a list did
                self._listed_at = -inf
            await self._find(now)
            await self._leave(self._gone - self._listed)
            self._gone.clear()
        members = dict(self._members)
        answers = await gather(
            lambda name: self._read(name, members[name], now),
            sorted(members),
            at_once=getattr(self._make, "AT_ONCE", AT_ONCE),
        )
        readings = dict(zip(sorted(members), answers, strict=True))
        missing = {name for name, answer in readings.items() if isinstance(answer, GoneError)}
        if missing:  # gone, unless a new list has it: then its answer is a failed read
            async with self._finding:
                self._listed_at = -inf
                await self._find(now)
            for name in missing - self._listed:
                del readings[name]
            await self._leave(missing - self._listed)
            self._gone -= missing
        return readings

    async def _read(self, name: str, member: AzureEntityCollector[Any], now: float) -> Reading | CollectError:
        try:
            answer: Reading | CollectError = await member.collect(now=now)
        except CollectError as error:
            answer = error
        if isinstance(answer, GoneError):
            self._gone.add(name)
        self._answered += 1
        return answer

    async def _leave(self, names: Iterable[str]) -> None:
        for name in names:
            if (gone := self._members.pop(name, None)) is not None:
                await gone.aclose()

    async def aclose(self) -> None:
        members, self._members = self._members, {}
        for member in (*members.values(), self._first):
            await member.aclose()
        await self._lister.aclose()

    async def _find(self, now: float) -> None:
        if 0.0 <= now - self._listed_at < LISTED_EVERY:
            return
        params = self._params
        try:
            client = await self._lister.get()
            listed = await params.listed(client)
            # As where an entity was made meanwhile: then the pages have moved, and may lack another one.
            if len({name.casefold() for name, _ in listed}) < len(listed):
                listed = await params.listed(client)
        except CollectError:
            raise
        except Exception as error:  # whatever an SDK raises
            label = f"{self._first.label}: the list of names"
            raise CollectError(self._first._explain(error, label, params.LISTING_ROLE)) from error
        pattern = params.pattern.casefold()
        matches = {
            name.casefold(): (name, about) for name, about in listed if fnmatchcase(name.casefold(), pattern)
        }
        if len(matches) > MOST:
            raise CollectError(
                f"{self._first.label}: {len(matches)} match; at most {MOST} are read. Divide them among more patterns"
            )
        for key, (name, about) in matches.items():
            if key not in self._members:
                of_member = structs.replace(
                    cast("Any", params), **{params.NAMED: name}, combine="sum", empty=None
                )
                self._members[key] = self._make(of_member, self._settings)
            self._members[key].describe(about, now)
        if (together := getattr(self._make, "together", None)) is not None:
            together([self._first, *self._members.values()])
        self._listed, self._listed_at = set(matches), now

    def _combined(self, label: str, answers: Mapping[str, Reading | CollectError]) -> Reading:
        errors = {name: answer for name, answer in answers.items() if isinstance(answer, CollectError)}
        failed = [error for error in errors.values() if error.reason is not Reason.ENTITY_DISABLED]
        if failed:
            raise CollectError(
                f"{label}: {len(failed)} of {len(answers)} cannot be read, the first one: {failed[0]}"
            )
        readings = [answer for answer in answers.values() if isinstance(answer, Reading)]
        if not readings:
            text = f"{label}: all {count_text(len(answers), 'match', 'matches')} are disabled"
            raise CollectError(text, reason=Reason.ENTITY_DISABLED)
        return self._together(readings)

    def _nothing(self, text: str, now: float) -> Reading:
        """A pattern that never matched may be misspelt, so `empty` counts only after it did."""
        if not self._has_matched:
            why = "; empty counts only once something has matched since the start"
            raise CollectError(f"{text} this pattern{'' if self._params.empty is None else why}")
        if self._params.empty is None:
            raise CollectError(f"{text} this pattern any more; give empty = 0 if that is no work")
        counts = set(self._make.COUNTS) - set(getattr(self._make, "GROWING", ()))
        return Reading(now, dict.fromkeys(sorted(counts), self._params.empty))

    def _together(self, readings: Sequence[Reading]) -> Reading:
        """What one of them does not know, the whole does not. Counters of other entities are another counter."""
        known = set(readings[0].values).intersection(*(reading.values for reading in readings))
        growing = {count for reading in readings for count in reading.counters}
        highest = known if self._params.combine == "max" else known & HIGHEST
        values = {
            count: (max if count in highest else sum)(reading.values[count] for reading in readings)
            for count in known - (growing & highest)
        }
        names = {
            count: crc32(repr([reading.counters.get(count) for reading in readings]).encode())
            for count in growing
        }
        unknown = {
            count: why
            for reading in reversed(readings)
            for count, why in reading.unknown.items()
            if count not in known
        }
        return Reading(min(reading.at for reading in readings), values, names, unknown)
