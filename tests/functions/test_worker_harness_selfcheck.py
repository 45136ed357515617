"""The harness runs apps as Azure does, finds what Azure would refuse, and agrees with the local host."""

import importlib.util
import json

import pytest

from devstack.function_host import FunctionHost
from tests.functions.worker_harness import run_worker

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("azure_functions_runtime") is None,
    reason="azure-functions-runtime is not installed; see requirements-worker.txt",
)

SAMPLE = """
import typing
import azure.functions as func

blueprint = func.Blueprint()

@blueprint.timer_trigger("timer", "%COLLECT_SCHEDULE%", run_on_startup=False)
@blueprint.queue_output("metrics", "metrics", "AzureWebJobsStorage")
def collect(timer: func.TimerRequest, metrics: func.Out[{list_type}]) -> None:
    metrics.set(['{{"metric": 1}}', str(timer.past_due)])

@blueprint.queue_trigger("message", "metrics", "AzureWebJobsStorage")
@blueprint.queue_output("$return", "actions", "AzureWebJobsStorage")
async def decide(message: func.QueueMessage, context: func.Context) -> str:
    if message.get_body() == b"bad":
        raise RuntimeError("cannot decide")
    if message.get_body() == b"nothing":
        return None
    return f"{{context.function_name}} {{message.dequeue_count}} {{message.id}} {{message.get_body().decode()}}"

@blueprint.route("targets/{{target}}", methods=["GET"], auth_level=func.AuthLevel.ANONYMOUS)
def status(req: func.HttpRequest) -> func.HttpResponse:
    return func.HttpResponse(req.route_params["target"] + req.params.get("q", ""), status_code=202)

app = func.FunctionApp()
app.register_functions(blueprint)
"""


def write_app(folder, list_type="typing.List[str]"):
    source = SAMPLE.format(list_type=list_type)
    (folder / "function_app.py").write_text(source)
    return source


def app_of(source):
    """The app object, made anew: it can be indexed once only."""
    module = {"__name__": "sample_app"}
    exec(source, module)
    return module["app"]


SETTINGS = {"COLLECT_SCHEDULE": "0 * * * * *"}


def hosted(source):
    return FunctionHost(app_of(source), settings=SETTINGS, storage_connection="UseDevelopmentStorage=true")


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The source of an app, and what the real worker answers for it."""
    folder = tmp_path_factory.mktemp("app")
    source = write_app(folder)
    requests = [
        {"function": "collect", "timer": {"IsPastDue": True, "ScheduleStatus": None}},
        {"function": "decide", "queue": "é", "metadata": {"Id": "abc", "DequeueCount": 2}},
        {"function": "status", "http": {"params": {"target": "plan"}, "query": {"q": "!"}}},
        {"function": "decide", "queue": "bad"},
        {"function": "decide", "queue": "nothing"},
    ]
    return source, run_worker(folder, requests)


def test_timer_queue_and_http_functions_run_in_the_real_worker(sample):
    _, answer = sample

    assert answer["error"] is None
    collected, decided, told, failed, _ = answer["invocations"]
    assert collected["outputs"]["metrics"]["type"] == "json"
    assert json.loads(collected["outputs"]["metrics"]["value"]) == ['{"metric": 1}', "True"]
    assert decided["return"] == {"type": "string", "value": "decide 2 abc é"}
    assert (failed["ok"], failed["error"]) == (False, "RuntimeError('cannot decide')")
    assert 'raise RuntimeError("cannot decide")' in failed["traceback"]
    assert told["return"]["value"]["status_code"]["value"] == "202"
    assert told["return"]["value"]["body"]["value"] == "plan!"


def test_the_local_host_sees_the_bindings_the_real_worker_reports(sample):
    source, answer = sample
    host = hosted(source)

    reported = [
        (function["name"], function["bindings"], function["is_async"]) for function in answer["functions"]
    ]
    assert [
        (function.name, list(function.raw_bindings), function.is_async) for function in host.functions
    ] == reported
    assert reported[0][1][1]["schedule"] == "%COLLECT_SCHEDULE%"


async def test_the_local_host_fails_the_invocations_the_real_worker_fails(sample):
    source, answer = sample
    host = hosted(source)

    records = [await host.run_function("decide", body) for body in ("bad", "nothing")]
    await host.stop()

    assert [invocation["ok"] for invocation in answer["invocations"][3:]] == [False, False]
    assert [record.succeeded for record in records] == [False, False]


def test_a_builtin_list_in_out_fails_the_indexing_of_the_whole_app(tmp_path):
    """The known trap: the SDK and direct calls take it, so only this finds it."""
    source = write_app(tmp_path, list_type="list[str]")
    assert len(app_of(source).get_functions()) == 3

    answer = run_worker(tmp_path)

    assert "collect" in answer["error"]
    assert "invalid non-type annotation" in answer["error"]
    assert answer["functions"] == []


def test_an_app_that_cannot_be_imported_is_reported_with_its_traceback(tmp_path):
    (tmp_path / "function_app.py").write_text("import no_such_module_anywhere\n")

    answer = run_worker(tmp_path)

    assert "no_such_module_anywhere" in answer["error"]
    assert "function_app.py" in answer["traceback"]


def test_a_folder_without_an_app_is_an_error(tmp_path):
    assert "no functions found" in run_worker(tmp_path)["error"]
