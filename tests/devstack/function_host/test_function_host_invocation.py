"""One invocation: its outputs, its record, the log lines made inside it."""

import asyncio
import io
import logging
import re
import threading

import azure.functions as func
import pytest

from devstack.function_host.indexing import index
from devstack.function_host.invocation import InvocationLog, Invoker, queue_bodies

log = logging.getLogger("the.app")


class FakeSender:
    def __init__(self, error=None):
        self.sent = []
        self._error = error

    async def send(self, binding, bodies):
        if self._error:
            raise self._error
        self.sent += [(binding["queueName"], body) for body in bodies]


def queue_function(user_function, *, returns=False, out=False):
    """The user function bound to a queue trigger and, if asked for, queue outputs."""
    app = func.FunctionApp()
    decorated = app.queue_trigger("message", "in", "Storage")(user_function)
    if returns:
        decorated = app.queue_output("$return", "returned", "Storage")(decorated)
    if out:
        app.queue_output("out", "set", "Storage")(decorated)
    return index(app, {})[0]


@pytest.fixture
def stream(caplog):
    caplog.set_level(logging.INFO)
    return io.StringIO()


@pytest.fixture
def invoker(stream):
    handler = InvocationLog(stream)
    logging.getLogger().addHandler(handler)
    invoker = Invoker(FakeSender(), handler, threads=2)
    yield invoker
    invoker.close()
    logging.getLogger().removeHandler(handler)


async def test_outputs_set_and_returned_are_sent_and_the_record_tells_of_success(invoker):
    def work(message: str, out: func.Out[str]) -> str:
        out.set("first")
        out.set(f"last {out.get()}")
        return message.upper()

    outcome = await invoker.invoke(queue_function(work, returns=True, out=True), "text", reason="test")

    assert sorted(invoker._sender.sent) == [("returned", "TEXT"), ("set", "last first")]
    assert (outcome.record.function, outcome.record.reason, outcome.record.succeeded) == (
        "work",
        "test",
        True,
    )
    assert outcome.value == "TEXT"
    assert list(invoker.records) == [outcome.record]


async def test_an_output_never_set_sends_nothing(invoker):
    async def work(message: str, out: func.Out[str]) -> None: ...

    outcome = await invoker.invoke(queue_function(work, out=True), "text", reason="test")

    assert outcome.record.succeeded
    assert invoker._sender.sent == []


async def test_a_function_that_raises_has_failed_and_its_outputs_are_not_sent(invoker, stream):
    def work(message: str, out: func.Out[str]) -> None:
        out.set("lost")
        raise ValueError("inside")

    outcome = await invoker.invoke(queue_function(work, out=True), "text", reason="test")

    assert (outcome.record.succeeded, outcome.record.error) == (False, "ValueError('inside')")
    assert invoker._sender.sent == []
    assert "Traceback" in stream.getvalue()
    assert "Executed 'Functions.work' (Failed, Id=" in stream.getvalue()


async def test_an_output_that_cannot_be_sent_fails_the_invocation(invoker):
    invoker._sender = FakeSender(OSError("no queue"))

    def work(message: str) -> str:
        return "x"

    outcome = await invoker.invoke(queue_function(work, returns=True), "text", reason="test")

    assert (outcome.record.succeeded, outcome.record.error) == (False, "OSError('no queue')")


async def test_a_value_returned_without_a_binding_fails_as_in_the_worker(invoker):
    def work(message: str) -> str:
        return "nowhere to go"

    outcome = await invoker.invoke(queue_function(work), "text", reason="test")

    assert "no $return binding but returned str" in outcome.record.error


async def test_none_returned_to_a_queue_fails_as_in_the_worker(invoker):
    async def work(message: str) -> str: ...

    outcome = await invoker.invoke(queue_function(work, returns=True), "text", reason="test")

    assert "queue as $return but returned None" in outcome.record.error


async def test_log_lines_carry_the_function_and_invocation_they_were_made_in(invoker, stream):
    """Two at once, one on the loop and one in a thread, each logging while the other runs."""
    loop_logged, thread_logged = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def on_the_loop(message: str) -> None:
        await loop_logged.wait()
        log.warning("from the loop %s", message)
        thread_logged.set()

    def in_a_thread(message: str, context: func.Context) -> None:
        log.info("from a thread as %s", context.function_name)
        loop.call_soon_threadsafe(loop_logged.set)
        assert thread_logged.wait(10)
        log.info("again, as %s", context.invocation_id)

    outcomes = await asyncio.gather(
        invoker.invoke(queue_function(on_the_loop), "a", reason="test"),
        invoker.invoke(queue_function(in_a_thread), "b", reason="test"),
    )
    log.info("from outside")

    first, second = (outcome.record for outcome in outcomes)
    assert [line for line in first.log if line.startswith("from")] == ["from the loop a"]
    assert second.log[1:3] == ["from a thread as in_a_thread", f"again, as {second.invocation_id}"]
    lines = stream.getvalue()
    assert re.search(
        rf"^\[2\S+\] on_the_loop {first.invocation_id[:8]} WARNING from the loop a$", lines, re.MULTILINE
    )
    assert re.search(rf"\] in_a_thread {second.invocation_id[:8]} from a thread as", lines)
    assert re.search(r"^\[2\S+\] from outside$", lines, re.MULTILINE)
    assert f"Executing 'Functions.in_a_thread' (Reason='test', Id={second.invocation_id})" in lines
    assert re.search(
        rf"Executed 'Functions.in_a_thread' \(Succeeded, Id={second.invocation_id}, Duration=\d+ms\)", lines
    )


async def test_the_log_of_one_host_leaves_out_invocations_of_another(invoker, stream):
    def work(message: str) -> None:
        log.info("mine")

    function = queue_function(work)
    other_stream = io.StringIO()
    other = InvocationLog(other_stream)
    logging.getLogger().addHandler(other)
    try:
        await invoker.invoke(function, "text", reason="test")
    finally:
        logging.getLogger().removeHandler(other)

    assert "mine" in stream.getvalue()
    assert other_stream.getvalue() == ""


async def test_synchronous_functions_run_side_by_side_in_as_many_threads_as_set(invoker):
    threads, both_at_work, all_submitted = set(), threading.Barrier(2), threading.Event()

    def work(message: str) -> None:
        threads.add(threading.current_thread().name)
        assert all_submitted.wait(10)
        both_at_work.wait(10)

    async def open_the_gate() -> None:
        all_submitted.set()  # the tasks before this one have handed their work to the threads

    function = queue_function(work)
    invocations = [invoker.invoke(function, "x", reason="test") for _ in range(6)]
    outcomes = await asyncio.gather(*invocations, open_the_gate())

    assert all(outcome.record.succeeded for outcome in outcomes[:-1])
    assert len(threads) == 2


@pytest.mark.parametrize(
    ("value", "bodies"),
    [
        ("text", ["text"]),
        ('["a", "b"]', ['["a", "b"]']),
        (b"\x00\xff", [b"\x00\xff"]),
        (["a", '{"b": 1}'], ["a", '{"b": 1}']),
        ([], []),
        (func.QueueMessage(id="1", body="é"), ['{"id": "1", "body": "\\u00e9"}']),
        ([func.QueueMessage(body="x"), "y"], ['{"id": null, "body": "x"}', "y"]),
    ],
)
def test_a_queue_output_becomes_messages_by_the_rules_of_the_sdk(value, bodies):
    assert queue_bodies(value) == bodies


@pytest.mark.parametrize("value", [3, [3], {"a": 1}.items()])
def test_a_queue_output_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match="a queue output takes str, bytes, QueueMessage or a list of them"):
        queue_bodies(value)
