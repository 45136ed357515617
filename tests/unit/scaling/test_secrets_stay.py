"""A secret that got into an error stays there: it is in no message, no log record, no answer, no exception."""

import logging
from contextlib import suppress

import pytest

from scaling.log_entry import LogKind
from scaling.model import Capacity, EffectOutcome, effect_of
from scaling.ports import CollectError, ScalerError
from scaling.rules.combine import safe_evaluate
from scaling.service.reading import MetricSource, make_report, read_capacity, read_metrics
from scaling.storage.poison_queues import shown
from tests.support.scaling.runner import World
from tidemark.foundation.http.answers import error_response
from tidemark.foundation.log.process import hide_secrets, keep_secrets_from_logs
from tidemark.foundation.sanitize import HiddenError, raise_without_secrets

KEY = "kZ0qUj3mJ8m1C5rT2vX9yB4nE7hL6pS0aDfGwQxVtYk="
STORY = f"cannot open 'Endpoint=sb://acme/;SharedAccessKeyName=root;SharedAccessKey={KEY}'\nnor\x1b[31m that"


class Broken:
    """A collector, a scaler and a rule whose SDK tells too much."""

    def __init__(self, error):
        self.error = error

    async def collect(self, *, now):
        raise self.error

    async def current(self, target, *, now):
        raise self.error

    def evaluate(self, view):
        raise self.error


@pytest.mark.parametrize("kind", [CollectError, ScalerError, ValueError])
async def test_a_report_carries_no_secret(kind):
    broken = Broken(kind(STORY))
    reading, capacity = await read_metrics(broken, 1.0), await read_capacity(broken, "t", 1.0)

    report = make_report("t", 1.0, [MetricSource("t", "m", "e", "active")], {"e": reading}, capacity)

    texts = [report.failures[0].message, report.capacity_error]
    assert all("SharedAccessKey=***" in text and text.isprintable() for text in texts), texts
    assert KEY not in repr(report)


def test_a_rule_that_raises_is_told_without_secrets():
    verdict = safe_evaluate(Broken(ValueError(STORY)), None)

    assert "SharedAccessKey=***" in verdict.note
    assert KEY not in verdict.note


def test_a_poison_message_is_shown_without_secrets():
    assert shown(STORY.replace("\x1b", "")).startswith("cannot open 'Endpoint=sb://acme/;")
    assert KEY not in shown(STORY)


def test_an_answer_of_the_api_has_none():
    assert KEY.encode() not in error_response(503, STORY).body


def test_an_exception_that_leaves_an_invocation_has_none_nor_have_its_causes():
    def fails():
        try:
            raise ValueError(STORY)
        except ValueError as error:
            raise KeyError("orders") from error

    with pytest.raises(HiddenError) as caught, raise_without_secrets():
        fails()

    assert str(caught.value) == "KeyError: 'orders'"
    assert caught.value.__suppress_context__


def test_an_exception_without_a_secret_passes_as_it_is():
    with pytest.raises(KeyError, match="orders"), raise_without_secrets():
        raise KeyError("orders")


def logged(message, *arguments, error=None):
    record = logging.LogRecord(
        "tidemark.consumer", 20, __file__, 1, message, arguments, error and (type(error), error, None)
    )
    hide_secrets(record)
    return record


def test_a_log_record_has_no_secret_in_its_message_and_none_in_its_traceback():
    record = logged("partition %s: %s", "3", STORY, error=ValueError(STORY))
    text = logging.Formatter().format(record)

    assert "partition 3: cannot open" in text
    assert "ValueError" in text
    assert KEY not in text
    assert KEY not in repr(vars(record))


def test_other_records_keep_their_arguments_and_their_exception():
    error = ValueError("refused")
    record = logged("partition %s", "3", error=error)

    assert (record.msg, record.args, record.exc_info[1]) == ("partition %s", ("3",), error)


def test_a_record_whose_arguments_do_not_fit_is_left_to_its_handler():
    assert logged("%d and %d", "x").args == ("x",)


@pytest.fixture
def factory():
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.parametrize(
    "name", ["tidemark.consumer", "consumer.sinks.cosmos.bulk", "azure.core.pipeline", "mine"]
)
def test_no_logger_of_a_process_tells_a_secret(factory, caplog, name):
    keep_secrets_from_logs()
    made = logging.getLogRecordFactory()
    keep_secrets_from_logs()

    logging.getLogger(name).error("failed: %s", STORY)

    assert logging.getLogRecordFactory() is made
    assert "SharedAccessKey=***" in caplog.text
    assert KEY not in caplog.text


class Refuses:
    """A scaler that carries nothing out, and tells why with too many words."""

    def __init__(self, answer):
        self.answer = answer

    async def current(self, target, *, now):
        return Capacity(2, now)

    async def apply(self, action, *, now):
        if isinstance(self.answer, Exception):
            raise self.answer
        return effect_of(action, EffectOutcome.REFUSED, now, STORY)


@pytest.mark.parametrize("answer", [None, ScalerError(STORY), ValueError(STORY)])
async def test_the_effect_of_an_action_is_logged_without_secrets(answer):
    world = World()
    world.scaler.inner = Refuses(answer)
    world.backlog = 900.0
    for _ in range(6):
        await world.tick()
        world.clock.now += 60.0
        with suppress(ValueError, ScalerError):
            await world.drain()
    effects = await world.entries(LogKind.EFFECT)

    assert effects
    assert all("SharedAccessKey=***" in entry.line and entry.line.isprintable() for entry in effects)
    assert KEY not in repr(await world.entries())
    assert KEY not in repr(await world.state())
