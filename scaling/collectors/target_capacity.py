"""The capacity of another target of this app, from its stored state: for rules that keep two targets in step."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from scaling.decision.lock_step import COUNTS, as_of, capacities
from scaling.ports import CollectError, Reading
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.opening import LazyClient
from tidemark.foundation.errors import StoreUnavailableError

if TYPE_CHECKING:
    from scaling.storage.states import TableStateStore


class TargetCapacityCollector:
    """Reads one row; the sample has the time of the newest fact in it. Without a known capacity it raises CollectError."""

    COUNTS: ClassVar[tuple[str, ...]] = COUNTS
    DEFAULT_COUNT: ClassVar[str] = "current"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        target: Annotated[str, msgspec.Meta(min_length=1)]

    def __init__(self, params: Params, settings: Mapping[str, str]) -> None:
        self.endpoint = f"tables of {STORAGE}"
        self._target = params.target
        self._settings = settings
        self._states = LazyClient(self._open, methodcaller("aclose"))

    @staticmethod
    def entity(params: Params) -> str:
        return params.target

    async def collect(self, *, now: float) -> Reading:
        """Raises CollectError naming the target."""
        try:
            loaded = await (await self._states.get()).load(self._target)
        except (StoreUnavailableError, ValueError) as error:
            raise CollectError(f"target '{self._target}': {error}") from error
        values = None if "state" in loaded.corrupt else capacities(loaded.state)
        if values is None:
            raise CollectError(
                f"target '{self._target}': its capacity is not known; is it the name of a target in tidemark.toml?"
            )
        return Reading(at=min(as_of(loaded.state), now), values=values)

    async def aclose(self) -> None:
        await self._states.aclose()

    def _open(self) -> TableStateStore:
        from scaling.storage.states import TableStateStore  # imports the SDKs, only when needed

        return TableStateStore(self._settings, STORAGE)
