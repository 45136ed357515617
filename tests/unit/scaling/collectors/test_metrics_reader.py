"""Regions that nobody configured: from one list, not from a single read of each resource."""

import asyncio
from types import SimpleNamespace

import pytest

from scaling.collectors.number.asking import RefusedError
from scaling.collectors.number.metric_answers import Series
from scaling.collectors.number.metrics_reader import MetricsReader

NOW = 1_700_000_000.0
GROUP = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg"
HOST = "https://management.azure.com"


def series(resource: str) -> Series:
    return Series(resource, "UsedCapacity", "average", 60, (), "namespace")


class Azure:
    """Answers as Azure Monitor and Resource Manager do; `pages` are those of the list."""

    def __init__(self, *pages) -> None:
        self.pages = list(pages)
        self.asked: list[str] = []
        self.batch_errors: list[Exception] = []

    async def close(self) -> None: ...

    async def document(self, method, url, *, body=None, **_):
        if url.endswith("/other/page") or "/resources?" in url:
            self.asked.append("list")
            page = self.pages.pop(0)
            if isinstance(page, Exception):
                raise page
            return page
        if method == "POST":
            region = url.partition("//")[2].partition(".")[0]
            self.asked.append(f"batch of {len(body['resourceids'])} in {region}")
            if self.batch_errors:
                raise self.batch_errors.pop(0)
            return {
                "values": [{"resourceid": each, "resourceregion": region} for each in body["resourceids"]]
            }
        self.asked.append("single")
        return {"resourceregion": "westeurope"}


async def reads(azure: Azure, resources: list[str]) -> list[str]:
    reader = MetricsReader({}, forming=0.01)
    reader._asking = azure
    for _ in range(2):
        await asyncio.gather(*(reader.read(series(each), 60, region="", now=NOW) for each in resources))
        first = sorted(azure.asked)
        azure.asked.clear()
        if _ == 0:
            told = first
    await reader.close()
    assert first == [f"batch of {len(resources)} in westeurope"]
    return told


QUEUES = [
    f"{GROUP}/providers/Microsoft.Storage/storageAccounts/acc{n}/queueServices/default" for n in range(20)
]
LISTED = [{"id": each.rpartition("/queueServices")[0].upper(), "location": "West Europe"} for each in QUEUES]


async def test_regions_of_many_resources_cost_one_list():
    azure = Azure({"value": LISTED[:5], "nextLink": f"{HOST}/other/page"}, {"value": LISTED[5:]})

    assert await reads(azure, QUEUES) == ["batch of 18 in westeurope", "list", "list", "single", "single"]


@pytest.mark.parametrize(
    "page",
    [
        RefusedError(SimpleNamespace(status=403, headers={}, body=b"")),
        {"value": []},
        {"value": LISTED, "nextLink": "https://evil.example/other/page"},
        {"value": LISTED, "nextLink": "https://management.azure.com@evil.example/other/page"},
        {},
    ],
)
async def test_without_a_list_each_region_is_learned_from_a_single_answer(page):
    assert await reads(Azure(page), QUEUES) == ["list", *["single"] * 20]


async def test_a_list_of_regions_that_goes_on_in_a_circle_is_not_followed_for_ever():
    again = {"value": LISTED, "nextLink": f"{HOST}:443/other/page"}

    assert await reads(Azure(again, again, again), QUEUES) == ["list", "list", *["single"] * 20]


async def test_for_two_resources_no_list_is_asked_for():
    assert await reads(Azure(), QUEUES[:2]) == ["single", "single"]


async def test_if_a_list_is_throttled_resources_are_read_one_by_one_as_far_as_the_limiter_permits():
    """A throttled list says nothing about single reads; if those are throttled too, the limiter refuses them."""
    azure = Azure(RefusedError(SimpleNamespace(status=429, headers={}, body=b"")))
    reader = MetricsReader({}, forming=0.01)
    reader._asking = azure

    await asyncio.gather(*(reader.read(series(each), 60, region="", now=NOW) for each in QUEUES))
    await reader.close()

    assert sorted(azure.asked) == ["list", *["single"] * 20]


async def test_where_reading_together_is_too_much_resource_manager_is_asked_and_the_next_try_is_together_again():
    azure = Azure()
    reader = MetricsReader({}, forming=0.01)
    reader._asking = azure
    azure.batch_errors = [RefusedError(SimpleNamespace(status=429, headers={}, body=b""))]

    for _ in range(2):
        await asyncio.gather(
            *(reader.read(series(each), 60, region="westeurope", now=NOW) for each in QUEUES[:3])
        )
    await reader.close()

    assert azure.asked == ["batch of 3 in westeurope", *["single"] * 3, "batch of 3 in westeurope"]
