"""Several hubs in one process: what fails in one ends or restarts that one alone."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
from msgspec import structs

from consumer.config import ConsumerConfig
from consumer.core.statistics import PipelineStatistics, Totals
from consumer.definition.model import Definition, HubDefinition
from consumer.errors import BacklogError, PoisonError, PositionError, ShutdownError
from consumer.running import hubs
from consumer.running.hubs import Hubs
from tests.support.virtual_time import virtual_time
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.log.tail import Line, log_line, without_tail

LOG = SimpleNamespace()
"""The scripts by hub, when each hub started, and how failures were described."""


class Process:
    """A consumer process that follows a script: per start of its hub, seconds and how it ends."""

    def __init__(self, config, settings, *, share, hub, limiter):
        self.name, self.limiter, self.board = config.name, limiter, SimpleNamespace(pulse=None)
        self.statistics = structs.replace(PipelineStatistics.of_nothing(), totals=Totals(written=1))
        if config.name == "unbuildable":
            raise SettingsError("no such connection")

    async def run(self, stop):
        LOG.started.append((self.name, asyncio.get_running_loop().time() - 1000.0))
        logging.getLogger("tidemark.consumer").info("%s", log_line(Line("5 successes", "consumer", {"n": 5})))
        script = LOG.scripts.get(self.name, [])
        seconds, outcome = script.pop(0) if script else (1e9, None)
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            LOG.described.append(self.describe_failure(outcome))
            if outcome is None:  # it came to the end that it was given (CONSUMER_UNTIL)
                return self.statistics
            raise outcome from None
        if isinstance(outcome, ShutdownError):
            raise outcome
        return self.statistics


def consume(scripts, *, seconds=200.0, rate=None, **options):
    """What `run` did: the totals or its error, when it ended, and when each hub started."""
    vars(LOG).update(scripts=scripts, started=[], described=[])
    definition = Definition(
        tuple(HubDefinition(ConsumerConfig("h", name=name), {}) for name in scripts), rate
    )

    async def main():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(seconds, stop.set)
        running = Hubs(definition, **options)
        try:
            outcome = await running.run(stop)
        except TidemarkError as error:
            outcome = error
        return outcome, loop.time() - 1000.0, running

    with virtual_time() as run:
        outcome, ended, running = run(main())
    starts = {name: [at for who, at in LOG.started if who == name] for name in scripts}
    return outcome, ended, starts, running


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    monkeypatch.setattr(hubs, "ConsumerProcess", Process)


def test_a_hub_that_fails_starts_again_and_the_other_goes_on():
    away = [(5.0, UnavailableError("away"))] * 3
    totals, ended, starts, _ = consume({"a": away, "b": []})

    assert starts == {"a": [0.0, 6.0, 13.0, 22.0], "b": [0.0]}
    assert (ended, totals.written) == (200.0, 5)


def test_a_hub_that_lasted_starts_again_soon():
    outcome, _, starts, _ = consume(
        {"a": [(1.0, BacklogError("full")), (70.0, BacklogError("full"))], "b": []}
    )

    assert starts["a"] == [0.0, 2.0, 73.0]
    assert isinstance(outcome, Totals)


@pytest.mark.parametrize("error", [SettingsError("no"), PositionError("bad"), PoisonError("poison")])
def test_a_hub_whose_error_a_start_does_not_mend_ends_and_the_other_goes_on(error):
    outcome, ended, starts, running = consume({"a": [(5.0, error)], "b": []})

    assert starts == {"a": [0.0], "b": [0.0]}
    assert isinstance(outcome, Totals)
    assert ended == 200.0
    assert running.boards[0].pulse.waits_for == f"{error}; it has ended"


def test_the_process_ends_with_the_first_error_when_all_hubs_have_ended():
    outcome, ended, _, _ = consume({"a": [(5.0, PositionError("bad"))], "b": [(9.0, PoisonError("poison"))]})

    assert (ended, outcome.exit_status) == (9.0, 3)


@pytest.mark.parametrize(
    ("scripts", "status"),
    [
        ({"a": [(1e9, ShutdownError("late"))], "b": []}, 6),
        ({"a": [(5.0, UnavailableError("away"))]}, 1),
        ({"a": [(5.0, PositionError("bad"))]}, 3),
    ],
)
def test_a_stop_that_was_not_in_order_and_the_error_of_an_only_hub_are_the_process_s(scripts, status):
    outcome, _, _, _ = consume(scripts)

    assert outcome.exit_status == status


def test_a_job_whose_hubs_come_to_their_end_has_the_error_of_the_one_that_did_not():
    outcome, ended, _, _ = consume({"a": [(5.0, PositionError("bad"))], "b": [(9.0, None)]})
    totals, _, _, _ = consume({"a": [(5.0, None)], "b": [(9.0, None)]})

    assert (ended, outcome.exit_status, totals.written) == (9.0, 3, 2)


def test_a_stop_ends_a_pause_at_once():
    _, ended, starts, _ = consume({"a": [(5.0, UnavailableError("away"))] * 6, "b": []}, seconds=50.0)

    assert ended == 50.0
    assert starts["a"][-1] < 50.0


def test_a_hub_that_cannot_be_built_again_ends_and_the_other_goes_on(monkeypatch):
    def broken(*_args, name=[], **options):  # noqa: B006 - it counts
        name.append(_args[0].name)
        if name.count("a") > 1:
            raise SettingsError("the module is gone")
        return Process(*_args, **options)

    monkeypatch.setattr(hubs, "ConsumerProcess", broken)
    outcome, ended, _, running = consume({"a": [(5.0, UnavailableError("away"))], "b": []})

    assert (ended, outcome.written) == (200.0, 2)
    assert running._hubs[0].down == "the module is gone; it has ended"


def test_lines_of_several_hubs_begin_with_the_hub(caplog):
    caplog.set_level("INFO", "tidemark.consumer")
    consume({"a": [(5.0, UnavailableError("away"))], "b": []})
    several = [without_tail(record.getMessage()) for record in caplog.records]
    caplog.clear()
    consume({"a": [(5.0, UnavailableError("away"))]})

    said = ["a: 5 successes", "b: 5 successes", "a: away; it starts again in 1 s", "a: 5 successes"]
    assert several == said
    assert not [record for record in caplog.records if record.getMessage().startswith("a:")]


def test_nothing_begins_if_one_hub_cannot_be_built():
    with pytest.raises(SettingsError, match="no such connection"):
        consume({"a": [], "unbuildable": []})

    assert LOG.started == []


def test_without_restarts_a_failed_hub_waits_for_the_next_slice():
    outcome, ended, starts, _ = consume({"a": [(5.0, UnavailableError("away"))], "b": []}, restarts=False)

    assert (starts, ended, str(outcome)) == ({"a": [0.0], "b": [0.0]}, 200.0, "away")


def test_the_hubs_share_one_rate_that_a_hub_keeps_over_its_restarts():
    _, _, _, running = consume({"a": [(5.0, UnavailableError("away"))], "b": []}, rate=100)
    limiters = [each.process.limiter for each in running._hubs]

    assert [limiter.rate for limiter in limiters] == [100, 100]
    assert sum(limiter.take(1000, 2000.0) for limiter in limiters) == 10
    assert len(running._rate.shares) == 2
    assert [limiter.takers for limiter in limiters] == [2, 2]
    limiters[0].set_rate(5.0, 2000.0)
    assert [limiter.takers for limiter in limiters] == [0, 2]


def test_the_last_row_of_a_failed_hub_says_what_follows():
    consume({"a": [(5.0, UnavailableError("away")), (5.0, PositionError("bad"))], "b": []})

    assert LOG.described == ["away; it starts again in 1 s", "bad; it has ended"]
