"""Platform metrics of any Azure resource: CPU of a plan, normalized request units, messages that came in."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, Name
from scaling.collectors.number.asking import digest
from scaling.collectors.number.metric_answers import (
    GRAINS,
    LOOK_BACK,
    Series,
    newest_end,
    newest_of,
    values_of,
)
from scaling.collectors.number.metrics_reader import MetricsReader
from scaling.ports import CollectError, Reading
from scaling.resource_id import ResourceId
from tidemark.foundation.durations import duration_within, parse_duration
from tidemark.foundation.errors import problems_of
from tidemark.foundation.wording import duration_text

logger = logging.getLogger(__name__)

DELAY = 180.0
"""Seconds after which a grain counts as whole: Azure Monitor has it 1 to 3 minutes later, and adds to it until then. An
earlier value is too low, and would scale in. No number is promised ("within a couple minutes", metrics-troubleshoot, 2026-08), and
others wait for five minutes: so each read looks whether values that were read before have risen since.
"""

MOST_GRAINS = 60

Region = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]*$")]


class AzureMonitorCollector(AzureEntityCollector[MetricsReader]):
    """The newest whole value of one metric of one resource, at the end of its grain. Metrics that differ in their resources only
    are read together.
    """

    COUNTS: ClassVar[tuple[str, ...]] = ("value",)
    DEFAULT_COUNT: ClassVar[str] = "value"
    HOW: ClassVar[tuple[str, ...]] = ("delay", "region", "empty", "grains")
    ROLE = "the role 'Tidemark Metrics Reader' of the templates, or 'Monitoring Reader', on the resource"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`grain` and `delay` in seconds, or texts such as "5m". `dimensions` choose one time series. `region` spares the first
        read of a process its single request. `empty` is what a grain without a value counts as; without it, one of the last
        `grains` has to have one.
        """

        resource_id: Name
        metric: Name
        aggregation: Literal["average", "minimum", "maximum", "total", "count"]
        dimensions: dict[str, str] = {}
        grain: float | str = 60.0
        delay: float | str = DELAY
        namespace: str = ""
        region: Region = ""
        empty: float | None = None
        grains: Annotated[int, msgspec.Meta(ge=1, le=MOST_GRAINS)] | None = None

        def problems(self) -> dict[str, str]:
            problems = problems_of(
                resource_id=lambda: ResourceId.parse(_plain(self.resource_id)),
                grain=lambda: _grain(self.grain),
                delay=lambda: duration_within(self.delay, 0.0, 86_400.0, "at most 1d"),
            )
            if self.empty is not None and self.grains is not None:
                problems["grains"] = f"found {self.grains} beside `empty`, by which each grain has a value"
            for name, value in self.dimensions.items():
                if not name.isidentifier() or not name.isascii() or value in {"", "*"}:
                    problems["dimensions"] = (
                        f"found {name} = '{value}'; accepted is the name of a dimension, and one value of it"
                    )
            return problems

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        resource = _plain(params.resource_id)
        name = resource.rpartition("/")[2]
        chosen = "".join(f", {dimension} {value}" for dimension, value in params.dimensions.items())
        # Each is an endpoint of its own, because the reader bounds and joins the requests of all.
        super().__init__(
            f"{params.metric} of '{name}'{chosen}", settings, endpoint=self.entity(params), deadline=deadline
        )
        self._series = Series(
            resource_id=resource,
            metric=params.metric,
            aggregation=params.aggregation,
            grain=_grain(params.grain),
            dimensions=tuple(sorted(params.dimensions.items())),
            namespace=params.namespace or ResourceId.parse(resource).type,
            look_back=max(LOOK_BACK, params.grains or 0),
        )
        self._params = params
        self._reported: dict[int, float] = {}
        """Values by the ends of their grains, as far as the next answer has them again."""
        self._warned = False

    @staticmethod
    def measured(params: Params, _: Mapping[str, str]) -> dict[str, object]:
        return {"resource_id": _plain(params.resource_id).casefold(), "grain": _grain(params.grain)}

    @staticmethod
    def entity(params: Params) -> str:
        return f"azure_monitor:{params.resource_id.rpartition('/')[2]} {params.metric} {digest(params)}"

    @classmethod
    def together(cls, collectors: Sequence[AzureMonitorCollector]) -> None:
        """Lets all of them read through one reader, which joins their requests."""
        cls._share(collectors)

    def _open(self) -> MetricsReader:
        return MetricsReader(self._settings)

    @staticmethod
    def timing(params: Params) -> tuple[float, float]:
        """Seconds that a sample counts, and how old it is at least."""
        return _grain(params.grain), parse_duration(params.delay)

    async def _read(self, client: MetricsReader, now: float, /) -> Reading:
        params, series = self._params, self._series
        end = newest_end(now, parse_duration(params.delay), series.grain)
        values = values_of(await client.read(series, end, region=params.region, now=now), series, end)
        self._warn_of_growth(values)
        if params.empty is not None:
            at, value = end, values.get(end, params.empty)
        elif (newest := newest_of(values, series, end, params.grains or LOOK_BACK)) is not None:
            at, value = newest
        else:
            raise CollectError(
                f"{self._label}: Azure Monitor has no value, which is not zero: of an entity without traffic, or of none that "
                "exists. `empty` can say what it means"
            )
        self._reported = {grain: known for grain, known in self._reported.items() if grain in values} | {
            at: value
        }
        return Reading(float(at), {"value": value})

    def _warn_of_growth(self, values: Mapping[int, float]) -> None:
        """Says once that values were read too early, where one that was read is higher now: the decisions went by less."""
        grown = [at for at, value in self._reported.items() if values.get(at, value) > value]
        if grown and not self._warned:
            before, after = self._reported[max(grown)], values[max(grown)]
            logger.warning(
                "%s: read as %g, a grain has %g now: Azure Monitor added to it after the `delay` of %s; give a longer one, by which "
                "decisions are later",
                self._label,
                before,
                after,
                duration_text(parse_duration(self._params.delay)),
            )
        self._warned = self._warned or bool(grown)


def _plain(resource_id: str) -> str:
    return resource_id.strip().rstrip("/")


def _grain(value: float | str) -> int:
    seconds = parse_duration(value)
    if seconds not in GRAINS:
        raise ValueError(f"found {value!r}; accepted are 1m, 5m, 15m, 30m, 1h, 6h, 12h, 1d")
    return int(seconds)
