"""host.json, local.settings.json and the app are checked before anything starts, naming what is at fault."""

import json
import typing

import azure.functions as func
import pytest

from devstack.function_host import FunctionHost, HostError
from devstack.function_host.settings import HostOptions, QueueOptions, load_host_json, load_settings

STORAGE = "UseDevelopmentStorage=true"


def queues(**section):
    return HostOptions.parse({"version": "2.0", "extensions": {"queues": section}}).queues


def test_an_empty_host_json_has_the_defaults_of_the_real_host():
    expected = QueueOptions(
        batch_size=16, new_batch_threshold=8, max_polling_interval_s=2.0, visibility_timeout_s=0.0,
        max_dequeue_count=5, base64=True,
    )  # fmt: skip

    assert HostOptions.parse({"version": "2.0"}) == HostOptions("api", expected)


def test_queue_options_are_read_and_the_threshold_follows_the_batch_size():
    options = queues(
        batchSize=6, maxPollingInterval="00:01:05", visibilityTimeout="01:00:00", messageEncoding="none"
    )

    assert options == QueueOptions(6, 3, 65.0, 3600.0, 5, base64=False)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"batchSize": 33}, "host.json batchSize is 33, accepted: 1 to 32"),
        ({"batchSize": "8"}, "host.json batchSize is '8'"),
        ({"newBatchThreshold": -1}, "newBatchThreshold is -1, accepted: 0 or more"),
        ({"maxDequeueCount": 0}, "maxDequeueCount is 0, accepted: 1 or more"),
        ({"visibilityTimeout": "30"}, "visibilityTimeout is '30', accepted: \"hh:mm:ss\""),
        ({"messageEncoding": "utf8"}, "messageEncoding is 'utf8', accepted: base64, none"),
    ],
)
def test_a_bad_queue_option_is_named(section, message):
    with pytest.raises(HostError, match=message):
        queues(**section)


def test_only_version_2_of_host_json_is_accepted():
    with pytest.raises(HostError, match=r"host.json version is None, accepted"):
        HostOptions.parse({})


def test_the_environment_overrules_the_settings_file(tmp_path):
    document = {"IsEncrypted": False, "Values": {"A": "file", "B": "file"}}
    (tmp_path / "local.settings.json").write_text(json.dumps(document))

    assert load_settings(tmp_path, {"B": "environment"}) == {"A": "file", "B": "environment"}
    assert load_settings(tmp_path / "none", {"C": "1"}) == {"C": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"Values": {"A": 1}}', "the value of A is 1, accepted: a string"),
        ('{"IsEncrypted": true}', "is encrypted"),
        ("[]", "holds a list, accepted: an object"),
        ("{", "is not valid JSON"),
    ],
)
def test_a_bad_settings_file_is_named(tmp_path, text, message):
    (tmp_path / "local.settings.json").write_text(text)

    with pytest.raises(HostError, match=message) as caught:
        load_settings(tmp_path, {})

    assert "local.settings.json" in str(caught.value)


def test_a_folder_without_host_json_is_named(tmp_path):
    with pytest.raises(HostError, match=r"no host\.json in .*; is it the folder of a function app"):
        load_host_json(tmp_path)


def timer_app(schedule):
    app = func.FunctionApp()

    @app.timer_trigger("timer", schedule)
    def tick(timer: func.TimerRequest) -> None: ...

    return app


def queue_app(connection="AzureWebJobsStorage"):
    app = func.FunctionApp()

    @app.timer_trigger("timer", "0 * * * * *")
    @app.queue_output("out", "q", connection)
    def tick(timer: func.TimerRequest, out: func.Out[str]) -> None: ...

    return app


def blob_app():
    app = func.FunctionApp()

    @app.blob_trigger("blob", "container/{name}", "AzureWebJobsStorage")
    def read(blob: func.InputStream) -> None: ...

    return app


def table_app():
    app = func.FunctionApp()

    @app.timer_trigger("timer", "0 * * * * *")
    @app.table_output("row", "AzureWebJobsStorage", "table")
    def tick(timer: func.TimerRequest, row: func.Out[str]) -> None: ...

    return app


def misnamed_app():
    app = func.FunctionApp()

    @app.timer_trigger("timer", "0 * * * * *")
    def tick(clock: func.TimerRequest) -> None: ...

    return app


def unbound_app():
    app = func.FunctionApp()

    @app.timer_trigger("timer", "0 * * * * *")
    def tick(timer: func.TimerRequest, more: str) -> None: ...

    return app


def retrying_app():
    app = func.FunctionApp()

    @app.timer_trigger("timer", "0 * * * * *")
    @app.retry(strategy="fixed_delay", max_retry_count="3", delay_interval="00:00:01")
    def tick(timer: func.TimerRequest) -> None: ...

    return app


def single_event_app():
    app = func.FunctionApp()

    @app.event_hub_message_trigger("event", "EventHubConnection", "hub", cardinality=func.Cardinality.ONE)
    def read(event: func.EventHubEvent) -> None: ...

    return app


def growing_retry_app():
    app = func.FunctionApp()

    @app.event_hub_message_trigger("events", "EventHubConnection", "hub", cardinality=func.Cardinality.MANY)
    @app.retry(
        strategy="exponential_backoff",
        max_retry_count="3",
        minimum_interval="00:00:01",
        maximum_interval="00:01:00",
    )
    def read(events: typing.List[func.EventHubEvent]) -> None: ...  # noqa: UP006 - the worker asks for it

    return app


def constrained_app():
    app = func.FunctionApp()

    @app.route("things/{id:int}")
    def read(req: func.HttpRequest) -> str: ...

    return app


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (
            timer_app("%SCHEDULE%"),
            "function tick: binding timer uses %SCHEDULE%, but there is no setting SCHEDULE",
        ),
        (timer_app("* * *"), r"function tick: schedule '\* \* \*' has 3 fields"),
        (
            queue_app("Other"),
            "function tick: binding out uses the connection Other, but there is no setting Other",
        ),
        (blob_app(), "function read: binding blob is of type blobTrigger, accepted here: timerTrigger"),
        (table_app(), "function tick: binding row is of type table, accepted here: .*queue, http"),
        (misnamed_app(), "function tick has no parameter for its binding timer"),
        (unbound_app(), "function tick has no binding for its parameter more"),
        (retrying_app(), "function tick has a retry policy"),
        (
            growing_retry_app(),
            "function read has a retry policy.*accepted: fixed_delay of an eventHubTrigger",
        ),
        (single_event_app(), "function read: cardinality is ONE, accepted here: MANY"),
        (
            constrained_app(),
            r"function read: route segment '{id:int}' is not known here; accepted: literal text",
        ),
    ],
)
def test_what_cannot_be_hosted_is_refused_naming_function_and_binding(app, message):
    with pytest.raises(HostError, match=message):
        FunctionHost(app, settings={}, storage_connection=STORAGE)


def test_settings_replace_placeholders_and_a_prefixed_connection_is_found():
    settings = {"SCHEDULE": "0 0 * * * *", "AzureWebJobsOther": STORAGE}

    host = FunctionHost(timer_app("%SCHEDULE%"), settings=settings)
    FunctionHost(queue_app("Other"), settings=settings)

    assert host.functions[0].trigger["schedule"] == "0 0 * * * *"
    assert host.functions[0].raw_bindings[0]["schedule"] == "%SCHEDULE%"


def test_a_thread_count_that_is_no_number_is_named():
    with pytest.raises(HostError, match="setting PYTHON_THREADPOOL_THREAD_COUNT is 'many'"):
        FunctionHost(timer_app("0 * * * * *"), settings={"PYTHON_THREADPOOL_THREAD_COUNT": "many"})


async def test_an_unknown_function_is_answered_with_the_names_there_are():
    host = FunctionHost(timer_app("0 * * * * *"), settings={})

    with pytest.raises(HostError, match="there is no function tock; there are: tick"):
        await host.run_function("tock")
