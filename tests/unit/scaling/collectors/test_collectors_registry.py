"""How plug-ins are found by name, and what is said when they are not."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from scaling.collectors.storage_queue import StorageQueueCollector
from scaling.service import registry
from scaling.service.assembly import assemble


@pytest.mark.parametrize("names", [registry.COLLECTORS, registry.SCALERS])
def test_registered_names_are_sorted(names):
    assert list(names) == sorted(names)


@pytest.mark.parametrize("kind", registry.COLLECTORS)
def test_each_registered_collector_can_be_looked_up(kind):
    cls = registry.collector_class(kind)

    assert cls.DEFAULT_COUNT in cls.COUNTS
    assert registry.collector_class(registry.COLLECTORS[kind]) is cls
    for count in cls.COUNTS:
        reader = registry.reader_class(cls, count)
        assert (reader is cls) == (count not in getattr(cls, "READERS", {}))
        assert all(callable(getattr(reader, name)) for name in ("collect", "aclose", "entity"))


@pytest.mark.parametrize("kind", registry.SCALERS)
def test_each_registered_scaler_can_be_looked_up(kind):
    assert registry.scaler_class(kind).__name__ == registry.SCALERS[kind].partition(":")[2]


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("", "kafka", "'kafka' is not a known collector; accepted are azure_monitor, "),
        ("", ":Mine", "':Mine' is not of the form module:Class"),
        ("", "no_such_module:Mine", "there is no module 'no_such_module'"),
        ("", "mine.deeper:Mine", "there is no module 'mine.deeper'"),
        ("import no_such_thing", "mine:Mine", "module 'mine' needs 'no_such_thing', not found"),
        ("1 / 0", "mine:Mine", "importing 'mine' failed with ZeroDivisionError: division by zero"),
        ("", "mine:Mine", "module 'mine' has no class 'Mine'"),
        ("Mine = 3", "mine:Mine", "module 'mine' has no class 'Mine'"),
        ("class Mine: pass", "mine:Mine", "no nested msgspec.Struct called Params"),
        (
            "import msgspec\nclass Mine:\n class Params(msgspec.Struct): pass",
            "mine:Mine",
            "it lacks collect, aclose, entity()",
        ),
        (
            "from tests.support.scaling.fakes_azure import FakeCollector\nclass Mine(FakeCollector): COUNTS = ()",
            "mine:Mine",
            "COUNTS must be a tuple",
        ),
        (
            "from tests.support.scaling.fakes_azure import FakeCollector\nclass Mine(FakeCollector): DEFAULT_COUNT = 'x'",
            "mine:Mine",
            "DEFAULT_COUNT must be one of active, dead_letter, total",
        ),
    ],
)
def test_what_is_wrong_with_a_plug_in_is_said(tmp_path, monkeypatch, source, kind, words):
    (tmp_path / "mine.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)

    with pytest.raises(ValueError) as raised:
        registry.collector_class(kind)

    assert words in str(raised.value)


def test_a_collector_is_not_taken_for_a_scaler():
    with pytest.raises(ValueError, match=r"it lacks current, apply\(\)"):
        registry.scaler_class("tests.support.scaling.fakes_azure:FakeCollector")


def test_looking_a_class_up_imports_no_service_sdk():
    """The app reads its configuration when it is indexed; half a second per SDK would be felt."""
    script = (
        "import sys\nfrom scaling.service import registry\n"
        "for kind in registry.COLLECTORS: registry.collector_class(kind)\n"
        "for kind in registry.SCALERS: registry.scaler_class(kind)\n"
        "heavy = ('azure.servicebus', 'azure.eventhub', 'azure.storage', 'azure.mgmt', 'azure.identity', 'azure.data')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


METRICS = {  # and the class that reads each
    "active": ('queue = "orders"', "ServiceBusQueueCollector"),
    "dead": ('queue = "orders"\ncount = "dead_letter"', "ServiceBusQueueCollector"),
    "age": ('queue = "orders"\ncount = "oldest_age"', "OldestAgeCollector"),
    "waits": ('queue = "orders"\ncount = "oldest_age"\nheld = 9', "OldestAgeCollector"),
    "talks": ('queue = "talks"\ncount = "sessions"', "SessionsCollector"),
    "all": ('queue = "orders*"', "MatchingCollector"),
    "most": ('queue = "orders*"\ncombine = "max"', "MatchingCollector"),
    "ages": ('queue = "orders*"\ncount = "oldest_age"', "MatchingCollector"),
}


async def test_metrics_share_a_read_where_one_request_answers_both(tmp_path):
    tables = "".join(
        f'[targets.plan.metrics.{name}]\ncollector = "service_bus_queue"\nconnection = "Bus"\n{lines}\n'
        for name, (lines, _) in METRICS.items()
    )
    rule = '[[targets.plan.rules]]\ntype = "target_per_unit"\nmetric = "active"\ntarget = 5\n'
    head = 'version = 1\n[targets.plan]\nscaler = "advice"\nmaximum = 9\n'
    (tmp_path / "tidemark.toml").write_text(f"{head}{tables}{rule}", "utf-8")
    bus = "Endpoint=sb://b.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"

    ports = assemble({"Bus": bus, "AzureWebJobsStorage": "UseDevelopmentStorage=true"}, root=tmp_path).ports

    read_by = {source.metric: type(ports.collectors[source.entity]).__name__ for source in ports.sources}
    assert read_by == {name: cls for name, (_, cls) in METRICS.items()}
    shared = [source.metric for source in ports.sources if source.entity == ports.sources[0].entity]
    assert shared == ["active", "dead"]
    assert len(ports.collectors) == len(METRICS) - 1
    for collector in [*ports.collectors.values()] * 2:
        await collector.aclose()


@pytest.mark.parametrize(("pattern", "poison"), [("orders*", []), ("*-poison", ["orders-poison"])])
async def test_a_pattern_of_storage_queues_leaves_poison_queues_out_unless_it_names_them(pattern, poison):
    async def list_queues():
        for name in ("orders", "orders-poison"):
            yield SimpleNamespace(name=name)

    params = StorageQueueCollector.Params(connection="Work", queue=pattern)
    listed = await params.listed(SimpleNamespace(list_queues=list_queues))

    assert [name for name, _ in listed] == ["orders", *poison]
