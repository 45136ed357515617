"""Platform metrics of any Azure resource: CPU of a plan, normalized request units, messages that came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, Name
from scaling.collectors.number.asking import digest
from scaling.collectors.number.metric_answers import GRAINS, Series, newest_end, value_of
from scaling.collectors.number.metrics_reader import MetricsReader
from scaling.ports import CollectError
from scaling.resource_id import ResourceId
from tidemark.foundation.durations import duration_within, parse_duration
from tidemark.foundation.errors import problems_of

DELAY = 180.0
"""Seconds after which a grain counts as whole: Azure Monitor has it 1 to 3 minutes later, and adds to it until then. An
earlier value is too low, and would scale in.
"""

Region = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]*$")]


class AzureMonitorCollector(AzureEntityCollector[MetricsReader]):
    """The newest whole value of one metric of one resource. Metrics that differ in their resources only are read together."""

    COUNTS: ClassVar[tuple[str, ...]] = ("value",)
    DEFAULT_COUNT: ClassVar[str] = "value"
    ROLE = "the role 'Tidemark Metrics Reader' of the templates, or 'Monitoring Reader', on the resource"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`grain` and `delay` in seconds, or texts such as "5m". `dimensions` choose one time series. `region` spares the first
        read of a process its single request. `empty` is what a grain without a value counts as.
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

        def problems(self) -> dict[str, str]:
            found = problems_of(
                resource_id=lambda: ResourceId.parse(_plain(self.resource_id)),
                grain=lambda: _grain(self.grain),
                delay=lambda: duration_within(self.delay, 0.0, 86_400.0, "at most 1d"),
            )
            for name, value in self.dimensions.items():
                if not name.isidentifier() or not name.isascii() or value in {"", "*"}:
                    found["dimensions"] = (
                        f"found {name} = '{value}'; accepted is the name of a dimension, and one value of it"
                    )
            return found

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        resource = _plain(params.resource_id)
        name = resource.rpartition("/")[2]
        chosen = "".join(f", {each} {value}" for each, value in params.dimensions.items())
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
        )
        self._params = params

    @staticmethod
    def entity(params: Params) -> str:
        return f"azure_monitor:{params.resource_id.rpartition('/')[2]} {params.metric} {digest(params)}"

    @classmethod
    def together(cls, collectors: Sequence[AzureMonitorCollector]) -> None:
        """Lets all of them read through one reader, which joins their requests."""
        cls._share(collectors)

    def _open(self) -> MetricsReader:
        return MetricsReader(self._settings)

    async def _read(self, client: MetricsReader, now: float, /) -> Mapping[str, float]:
        params, series = self._params, self._series
        end = newest_end(now, parse_duration(params.delay), series.grain)
        answer = await client.read(series, end, region=params.region, now=now)
        found = value_of(answer, series, end, params.empty)
        if found is None:
            raise CollectError(
                f"{self._label}: Azure Monitor has no value, which is not zero: of an entity without traffic, or of none that "
                "exists. `empty` can say what it means"
            )
        return {"value": found}


def _plain(resource_id: str) -> str:
    return resource_id.strip().rstrip("/")


def _grain(value: float | str) -> int:
    seconds = parse_duration(value)
    if seconds not in GRAINS:
        raise ValueError(f"found {value!r}; accepted are 1m, 5m, 15m, 30m, 1h, 6h, 12h, 1d")
    return int(seconds)
