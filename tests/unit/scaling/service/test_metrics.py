"""The autoscaler's instruments: what they say of a log line, that their page is current, who asks for them."""

from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from consumer.telemetry import metrics as consumer
from scaling.service.metrics import INSTRUMENTS, AutoscalerMetrics, document, metrics_of
from tests.support.scaling.runner import World
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.log.tail import Line

ROOT = Path(__file__).resolve().parents[4]


def test_the_page_of_metrics_is_current():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    assert page == consumer.document() + document(), "see the page's second line"


def read(reader):
    """Values by name and attributes."""
    data = reader.get_metrics_data()
    return {
        (metric.name, *(value for _, value in sorted(point.attributes.items()))): point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


@pytest.fixture
def measured():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    yield reader, provider
    provider.shutdown()


async def test_a_decision_and_its_effect_are_measured_and_a_gauge_ends_with_the_decisions(measured):
    reader, provider = measured
    world = World()
    metrics = AutoscalerMetrics(world.clock, provider)
    world.backlog = 900.0
    for _ in range(5):
        world.actions += (outcome := await world.later()).messages
        metrics.record(outcome.lines)
    metrics.record((await world.deliver()).lines)
    world.clock.now += 30.0

    found = read(reader)

    assert {name[1:]: value for name, value in found.items() if name[0] == "autoscaler.effects"} == {
        ("applied", "plan"): 1
    }
    assert found["autoscaler.capacity.current", "plan"] == 2
    assert found["autoscaler.capacity.desired", "plan"] == 3
    assert found["autoscaler.metric", "backlog", "plan"] == 900.0
    assert found["autoscaler.rule.threshold", ">", "backlog", "backlog", "plan"] == 500.0
    assert found["autoscaler.decision.age", "plan"] == 30.0
    assert sum(value for name, value in found.items() if name[0] == "autoscaler.decisions") == 5
    world.clock.now += 900.0
    later = {name[0] for name in read(reader)}
    assert "autoscaler.capacity.current" not in later
    assert "autoscaler.decision.age" in later


def test_lines_of_other_kinds_and_texts_are_passed_over(measured):
    reader, provider = measured
    metrics = AutoscalerMetrics(lambda: 0.0, provider)

    report = {"target": "t", "failures": [{"metric": "cpu", "reason": "collect_failed", "message": "?"}]}
    late = {"target": "t", "at": 0.0, "reason": "x", "service_levels": [{"rule": "sl", "late_today": 2.5}]}
    late |= {"durations": {"age": 90.0}}
    metrics.record(["words", Line("check", "check", {"at": 1.0})])
    metrics.record(
        [Line("r", "report", report), Line("d", "decision", late), Line("p", "poison", {"count": 3})]
    )

    found = read(reader)
    assert found["autoscaler.reads.failed", "cpu", "collect_failed", "t"] == 1
    assert found["autoscaler.late", "sl", "t"] == 0.025
    assert found["autoscaler.metric.duration", "age", "t"] == 90.0
    assert found["autoscaler.poison",] == 3
    assert not any(name[0] == "autoscaler.capacity.current" for name in found)


def test_every_instrument_has_a_name_of_its_own():
    names = [each.name for each in INSTRUMENTS]

    assert len(set(names)) == len(names)


def test_an_exporter_that_is_unknown_or_lacks_its_connection_is_told_by_name():
    with pytest.raises(
        SettingsError, match="TIDEMARK_METRICS_EXPORTER is 'prometheus'; accepted: none, opentelemetry"
    ):
        metrics_of({"TIDEMARK_METRICS_EXPORTER": "prometheus"}, lambda: 0.0)
    with pytest.raises(SettingsError, match="TIDEMARK_METRICS_EXPORTER=azure_monitor needs it"):
        metrics_of({"TIDEMARK_METRICS_EXPORTER": "azure_monitor"}, lambda: 0.0)
    assert metrics_of({"TIDEMARK_METRICS_EXPORTER": "opentelemetry"}, lambda: 0.0)
