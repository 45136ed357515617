"""Each check has an event loop of its own, so none may use what another has opened."""

from types import SimpleNamespace

import pytest
from azure.core.exceptions import HttpResponseError

from scaling.doctor import calls, checks
from scaling.doctor.checks import Case, checks_of
from scaling.service.assembly import assemble

PLAN = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"
TARGET = """
[targets.tN]
scaler = "app_service_plan"
resource_id = "{plan}N"
maximum = 5

[targets.tN.metrics.m]
collector = "http_json"
url = "https://example.com/N"
path = "a"

[[targets.tN.rules]]
type = "target_per_unit"
metric = "m"
target = 1
""".replace("{plan}", PLAN)
SETTINGS = {"AzureWebJobsStorage": "UseDevelopmentStorage=true", "COLLECT_SCHEDULE": "0 * * * * *"}


@pytest.mark.parametrize("apart", [False, True])
def test_adapters_share_their_clients_unless_they_are_to_be_apart(tmp_path, apart):
    text = "version = 1\n" + "".join(TARGET.replace("N", str(number)) for number in range(2))
    (tmp_path / "tidemark.toml").write_text(text, encoding="utf-8")

    ports = assemble(SETTINGS, root=tmp_path, apart=apart).ports

    first, second = ports.scalers.values()
    assert (first._arm is second._arm) is not apart
    first, second = ports.collectors.values()
    assert (first._client is second._client) is not apart


def test_the_doctor_has_them_apart(tmp_path, monkeypatch):
    asked = []

    def assembled(_settings, **options):
        asked.append(options)
        raise ValueError("as far as this goes")

    monkeypatch.setattr(checks, "assemble", assembled)
    checks_of(Case(SETTINGS, tmp_path, lambda: 0.0))

    assert asked == [{"root": tmp_path, "apart": True}]


async def test_an_app_that_was_deleted_meanwhile_keeps_no_other_from_being_told(monkeypatch):
    class Plan:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def entries(self, _path, _version):
            for name in ("a", "gone", "b"):
                yield {"id": f"/sites/{name}", "name": name}

        async def get(self, path, _version):
            if "gone" in path:
                raise HttpResponseError(response=SimpleNamespace(status_code=404, reason="", headers={}))
            return {"properties": {"perSiteScaling": True, "numberOfWorkers": 3}}

    monkeypatch.setattr(calls, "open_resources", lambda _: Plan())

    assert await calls.workers_of_apps({}, "/plan") == {"a": 3, "gone": None, "b": 3}
