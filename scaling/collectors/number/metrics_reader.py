"""Reads platform metrics of Azure Monitor: many resources in one request where they are alike, else one by one.

`metrics:getBatch` of a region reads one metric of up to 50 resources of one subscription, region and type. Reads that begin
together share a request if they can. If the service refuses it (a right or a network for the region is missing, one resource
was removed), each resource is read through Resource Manager, and the next batch waits. The reader learns regions that are not
configured from single answers; if several resources of a type lack one, from one list of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from scaling.calls.limiter import CallRefusedError
from scaling.calls.lists import Lists
from scaling.collectors.number.asking import Asking, RefusedError, cloud_of
from scaling.collectors.number.metric_answers import Series, located, owner_of, region_of
from scaling.scalers.arm.clients import ENDPOINT as MANAGEMENT
from scaling.scalers.arm.clients import endpoint, scope
from tidemark.foundation.http.outward import is_of_origin
from tidemark.foundation.sanitize import describe_error

ENDPOINT = "AZURE_METRICS_ENDPOINT"
HOST = "metrics.monitor.azure"

AT_ONCE = 50
"""Resources of one request; the service's limit."""

SINGLE_READS = 16
"""Single reads of one kind that are made at the same time."""

FORMING = 0.05
"""Seconds that a batch waits for further reads; those of one collection begin within milliseconds."""

PATIENCE = 5.0
"""Seconds that reading together may take: there must be time left to read alone."""

REFUSED_FOR = 600.0
"""Seconds until reading together is tried again where it was refused."""

REGIONS_AGE = 3600.0
"""Seconds until regions are listed again, for a resource that was not there."""

logger = logging.getLogger(__name__)


_Place = tuple[object, ...]


class _Kind(Struct, frozen=True):
    """What reads in one batch have in common; `series` is one of them without its resource."""

    region: str
    series: Series
    end: int

    @property
    def place(self) -> _Place:
        """What reading together is refused for, as a right or a network is missing."""
        return self.region, self.series.subscription, self.series.namespace

    @property
    def asked(self) -> _Place:
        """The same, where what was asked is wrong: a metric that does not exist keeps no other from being read together."""
        return (*self.place, self.series.metric, self.series.dimensions)


class _Batch:
    """Resources of one request, and the answers that their reads wait for."""

    def __init__(self) -> None:
        self.resources: list[str] = []
        self.answers: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()


class MetricsReader:
    """One for all metrics of Azure Monitor that an app collects."""

    def __init__(self, settings: Mapping[str, str], *, forming: float = FORMING) -> None:
        """Raises ValueError naming a setting at fault."""
        self._management, self._management_scope = endpoint(settings), scope(settings)
        cloud = cloud_of(settings)
        self._metrics_scope = f"https://{HOST}.{cloud}/.default"
        self._metrics = settings.get(ENDPOINT, "").strip().rstrip("/") or f"https://{{region}}.{HOST}.{cloud}"
        addresses = [
            address
            for name, address in ((MANAGEMENT, self._management), (ENDPOINT, self._metrics))
            if name in settings
        ]
        self._asking = Asking(settings, *addresses)
        self._forming_seconds = forming
        self._forming: dict[_Kind, _Batch] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._regions: dict[str, str] = {}
        self._located: Lists[Mapping[str, str]] = Lists()
        self._refused: dict[_Place, float] = {}
        self._singles = asyncio.Semaphore(SINGLE_READS)

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._located.once.aclose()
        await self._asking.close()

    async def read(self, series: Series, end: int, *, region: str, now: float) -> Any:
        """The answer about one resource. Raises what `Asking.document` raises."""
        resource = series.resource_id
        region = region or self._regions.get(resource, "") or await self._region(series, now)
        kind = _Kind(region, structs.replace(series, resource_id=series.scope), end)
        if region and now >= max(self._refused.get(place, 0.0) for place in (kind.place, kind.asked)):
            answer = (await asyncio.shield(self._joined(kind, resource, now).answers)).get(
                resource.casefold()
            )
            if answer is not None:
                return answer
        return await self._alone(series, end)

    async def _region(self, series: Series, now: float) -> str:
        """The region in the list of its type; empty if the list has none."""
        owner, type_ = owner_of(series.resource_id)
        place = series.subscription.casefold(), type_.casefold()
        self._located.join(series.resource_id.casefold(), place)

        async def ask() -> Mapping[str, str]:
            url, regions = f"{self._management}{located(series.subscription, type_)}", {}
            asked = set[str]()
            while url:
                asked.add(url)
                page = await self._asking.document(
                    "GET", url, setting=MANAGEMENT, scope=self._management_scope
                )
                for resource in page["value"]:
                    region = "".join(str(resource.get("location") or "").casefold().split())
                    regions[str(resource.get("id", "")).casefold()] = region
                url = str(page.get("nextLink") or "")
                if url in asked or (url and not is_of_origin(url, self._management)):
                    raise ValueError("the list goes on at another host, or in a circle; it is not followed")
            return regions

        what = f"regions of {type_} in subscription {series.subscription}"
        listed = await self._located.of(place, ask, now=now, what=what, fresh=REGIONS_AGE)
        if region := region_of({"resourceregion": (listed or {}).get(owner.casefold(), "")}):
            self._regions[series.resource_id] = region
        return region

    async def _alone(self, series: Series, end: int) -> Any:
        url = f"{self._management}{series.alone(end)}"
        async with self._singles:
            answer = await self._asking.document("GET", url, setting=MANAGEMENT, scope=self._management_scope)
        if region := region_of(answer):
            self._regions[series.resource_id] = region
        return answer

    def _joined(self, kind: _Kind, resource: str, now: float) -> _Batch:
        """The batch of a resource, which is sent when it is full, or FORMING seconds after its first resource."""
        batch = self._forming.get(kind)
        if batch is None:
            batch = self._forming[kind] = _Batch()
            task = asyncio.create_task(self._send(kind, batch, now))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        batch.resources.append(resource)
        if len(batch.resources) == AT_ONCE:
            del self._forming[kind]
        return batch

    async def _send(self, kind: _Kind, batch: _Batch, now: float) -> None:
        """Sends a batch. If it fails there are no answers, and each resource is read alone."""
        answers: Mapping[str, Any] = {}
        try:
            await asyncio.sleep(self._forming_seconds)
            if self._forming.get(kind) is batch:
                del self._forming[kind]
            answers = await self._together(kind, batch.resources)
        except Exception as error:  # whatever is wrong with reading together, there is another way
            # Too much was asked of the region's endpoint. Resource Manager counts for itself, and is asked meanwhile.
            if not isinstance(error, CallRefusedError) and getattr(error, "status", None) != 429:
                self._refuse(kind, error, now)
        finally:
            if not batch.answers.done():
                batch.answers.set_result(answers)

    async def _together(self, kind: _Kind, resources: list[str]) -> dict[str, Any]:
        """The answers by resource, in lower case."""
        address = self._metrics.replace("{region}", kind.region)
        document = await self._asking.document(
            "POST",
            f"{address}{kind.series.together(kind.end)}",
            setting=ENDPOINT,
            body={"resourceids": resources},
            scope=self._metrics_scope,
            attempts=1,
            patience=PATIENCE,
        )
        values = document.get("values") if isinstance(document, Mapping) else None
        # Of another region, or of none, it may be empty because nothing is there: such a resource is read alone.
        here = (
            (value for value in values if region_of(value) == kind.region) if isinstance(values, list) else ()
        )
        of_region = list(here)
        if not of_region:
            raise ValueError(f"the answer about several resources holds none in {kind.region}")
        return {str(value.get("resourceid", "")).casefold(): value for value in of_region}

    def _refuse(self, kind: _Kind, error: Exception, now: float) -> None:
        wrong = isinstance(error, RefusedError) and error.status in {400, 404}
        self._refused[kind.asked if wrong else kind.place] = now + REFUSED_FOR
        logger.warning(
            "Azure Monitor: %s in %s cannot be read together, so each is read by itself for the next %g min: %s",
            kind.series.namespace,
            kind.region,
            REFUSED_FOR / 60,
            describe_error(error),
        )
