"""Processes that are forked from one which has imported what they run: half of what a short life costs is imports."""

import multiprocessing
import os
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

ROOT = Path(__file__).parents[2]

_FORKING = multiprocessing.get_context("forkserver")
# What a consumer and a function app import. None of it starts a thread; the functions themselves read settings.
_FORKING.set_forkserver_preload(
    [
        *("consumer.cli.consume", "consumer.running.hubs", "consumer.stores.blob.leases"),
        *("consumer.sinks.cosmos.options", "consumer.sinks.sql.options", "azure.eventhub.aio"),
        *("tests.functions.worker_harness", "azure_functions_runtime.handle_event"),
        *("scaling.service.assembly", "scaling.web.api", "scaling.web.past", "consumer.web.trigger_events"),
    ]
)


def start_forked(function, *arguments, environment, log):
    """The process in which `function` runs, in the repository's folder and without input; its errors go into the file `log`."""
    process = _FORKING.Process(target=_run, args=(function, arguments, environment, str(log)))
    # It would import pytest anew, which is the main module here.
    with mock.patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
        process.start()
    return process


def _run(function, arguments, environment, log):
    os.setsid()
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (2, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(path, flags, 0o644), number)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)
