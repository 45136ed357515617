"""Index and invoke a function app with the library that runs Python functions in Azure (azure-functions-runtime).

run_worker() has a process for each app: the library keeps what it indexed in module state. This file is the only place
that knows that library's internals, for the one version in SUPPORTED_VERSION.

A request:  {"function": name, "timer": {"IsPastDue": false}}
            {"function": name, "queue": body text, "metadata": {"Id": "..", "DequeueCount": 1, ...}}
            {"function": name, "http": {"method", "url", "headers", "query", "params", "body"}}    all optional
            {"function": name, "events": [body text, ...], "metadata": {"PartitionContext": JSON text, ...}}

The answer: {"error": null, "functions": [{"name", "bindings", "is_async", "retry"}], "invocations": [{...}]}, an
            invocation being
            {"ok", "return": datum or null, "outputs": {name: datum}, "error", "traceback", "log": [{"logger", "level",
            "message"}]}, a datum {"type", "value"}. The log is what the worker would send to the host of that invocation.
If the app cannot be indexed, "error" tells why and the lists are empty, as in Azure, where all functions are missing.
"""

# ruff: noqa: PLC0415 - run_worker() is imported by tests where the library may be missing

import asyncio
import json
import logging
import os
import sys
import traceback
from importlib import metadata
from multiprocessing import Pipe
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace

from tests.support.forking import start_forked

SUPPORTED_VERSION = "1.3.0"


def _message(**fields):
    """Stands in for a protobuf message: the library only fills them, we only read them."""
    return SimpleNamespace(**fields)


# The numbers of BindingInfo.Direction in FunctionRpc.proto, which binding.direction of the SDK uses too. "in" being a
# keyword, this cannot be a class statement.
_BindingInfo = type("_BindingInfo", (SimpleNamespace,), {"in": 0, "out": 1, "inout": 2, "undefined": 0})

_PROTOS = SimpleNamespace(BindingInfo=_BindingInfo, RpcFunctionMetadata=_message, RpcRetryOptions=_message)


def index(folder):
    """Index the app in a folder as the worker does at its start; the metadata it would send to the host."""
    from azure_functions_runtime import handle_event
    from azure_functions_runtime.bindings.meta import load_binding_registry
    from azure_functions_runtime.utils.threadpool import start_threadpool_executor

    installed = metadata.version("azure-functions-runtime")
    if installed != SUPPORTED_VERSION:
        raise RuntimeError(f"azure-functions-runtime is {installed}, this harness knows {SUPPORTED_VERSION}")
    os.chdir(folder)
    sys.path.insert(0, folder)
    handle_event.protos = _PROTOS
    load_binding_registry()
    start_threadpool_executor()
    handle_event.load_function_metadata(folder, caller_info="worker_harness")
    if not handle_event._metadata_result:
        raise RuntimeError(f"no functions found in {folder}")
    return handle_event._metadata_result


def describe(function):
    from azure_functions_runtime.handle_event import _functions

    return {
        "name": function.name,
        "bindings": [json.loads(binding) for binding in function.raw_bindings],
        "is_async": _functions.get_function(function.function_id).is_async,
        "retry": {
            name: str(value) for name, value in vars(function.retry_options or SimpleNamespace()).items()
        },
    }


class HostLog(logging.Handler):
    """Stands in for the worker's handler on the root logger, which sends each record to the host."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def emit(self, record):
        if not record.name.startswith(
            "azure_functions_runtime"
        ):  # the library's own, which the host files as its own
            line = {"logger": record.name, "level": record.levelname, "message": record.getMessage()}
            self.sent.append(line)


async def invoke(request, functions, log):
    from azure_functions_runtime.native_invocation import invocation_request_native

    function = functions[request["function"]]
    trigger = next(
        name for name, binding in function.bindings.items() if str(binding.type).endswith("Trigger")
    )
    datum, trigger_metadata = trigger_input(request)
    log.sent = sent = []
    ok, returned, outputs, error, trace = await invocation_request_native(
        "00000000-0000-0000-0000-000000000001", function.function_id, [(trigger, datum)], trigger_metadata
    )
    return {
        "ok": ok,
        "return": plain(returned),
        "outputs": {name: plain(value) for name, value in outputs},
        "error": error,
        "traceback": trace,
        "log": sent,
    }


def trigger_input(request):
    """The trigger's datum and metadata as the host would send them."""
    from azure_functions_runtime.bindings.datumdef import Datum

    if "timer" in request:
        return Datum(json.dumps(request["timer"]), "json"), {}
    if "queue" in request:
        described = {
            name: Datum(json.dumps(value), "json") for name, value in request.get("metadata", {}).items()
        }
        return Datum(request["queue"], "string"), described
    if "events" in request:
        described = {name: Datum(text, "json") for name, text in request["metadata"].items()}
        bodies = [body.encode() for body in request["events"]]
        return Datum(SimpleNamespace(bytes=bodies), "collection_bytes"), described
    http = request["http"]
    texts = {
        name: {key: Datum(value, "string") for key, value in http.get(name, {}).items()}
        for name in ("headers", "query", "params")
    }
    parts = {
        "method": Datum(http.get("method", "GET"), "string"),
        "url": Datum(http.get("url", "http://localhost/"), "string"),
        "body": Datum(http.get("body", "").encode(), "bytes"),
    }
    return Datum({**texts, **parts}, "http"), {}


def plain(value):
    """A datum, or anything holding data, as JSON values."""
    if hasattr(value, "type") and hasattr(value, "value"):
        return {"type": value.type, "value": plain(value.value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    return value


async def serve(folder, requests, log):
    try:
        indexed = index(folder)
        logging.getLogger().setLevel(logging.INFO)  # as the worker does when the host reloads its environment
    except Exception as error:  # whatever the app or the library raises is the answer
        text = "".join(traceback.format_exception(error))
        return {
            "error": f"{type(error).__name__}: {error}",
            "traceback": text,
            "functions": [],
            "invocations": [],
        }
    functions = {function.name: function for function in indexed}
    return {
        "error": None,
        "functions": [describe(function) for function in indexed],
        "invocations": [await invoke(request, functions, log) for request in requests],
    }


def run_worker(folder, requests=(), settings=None):
    """This harness on an app folder in a process of its own, with settings added to the environment."""
    receiving, sending = Pipe(duplex=False)
    with NamedTemporaryFile() as log, receiving:
        process = start_forked(
            main,
            str(folder),
            list(requests),
            sending,
            environment={**os.environ, **(settings or {})},
            log=log.name,
        )
        sending.close()
        try:
            assert receiving.poll(60), f"no answer within 60 s: {log.read().decode()}"
            return json.loads(receiving.recv())
        except EOFError:
            raise AssertionError(log.read().decode()) from None
        finally:
            process.kill()
            process.join()


def logged(answer):
    """The log of all invocations, which succeeded."""
    assert answer["error"] is None
    assert all(invocation["ok"] for invocation in answer["invocations"]), answer["invocations"]
    return [line for invocation in answer["invocations"] for line in invocation["log"]]


def foreign(lines):
    """Of these lines those that are none of ours."""
    return [line for line in lines if not line["logger"].startswith(("tidemark", "scaling", "consumer"))]


def main(folder, requests, answers):
    from azure_functions_runtime.utils.threadpool import stop_threadpool_executor

    log = HostLog()  # the worker has its handler and its level before it imports the app
    logging.basicConfig(level=logging.INFO, handlers=[log, logging.StreamHandler()])
    answer = asyncio.run(serve(str(Path(folder).resolve()), requests, log))
    stop_threadpool_executor()
    answers.send(json.dumps(answer))
