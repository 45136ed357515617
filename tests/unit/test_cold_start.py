"""What a cold instance fetches and imports before it does anything: counted in bytes and modules, as seconds depend on
the machine.
"""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "cli" / "pyproject.toml").read_text())
FUNCTIONS, IMAGE = "requirements.txt", "infra/consumer/requirements.txt"
STACK = "devstack/requirements.txt"

MODULES = 525
"""Modules there are once the app is imported and indexed; 1,025 before it was looked at, 448 when it had been.
azure-functions and what it imports (werkzeug, asyncio, email) are 250 of them, our own code 170: drains, calendars, counters and
the time of a message brought 15, of which none loads anything else.
"""

AFTER_A_MESSAGE = 820
"""The same once the autoscaler is put together and was given a message, by connection string."""

MEGABYTES = 60
"""Of the packages in requirements.txt as installed, without what Python compiles; 94.5 before."""

SDKS = {"aiohttp", "cryptography", "requests", "msal", "sqlalchemy", "rich", "typer", "mmh3", "opentelemetry"}


def pinned(name):
    """Normalised name -> versions of a lock file."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line):
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


def python(code, *arguments):
    answer = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return json.loads(answer.stdout.splitlines()[-1])


IMPORT = """
import json, sys
import function_app
function_app.app.get_functions()
print(json.dumps(sorted(sys.modules)))
"""

DECIDE = """
import asyncio, json, os, sys
import function_app
from scaling.web import functions
os.environ |= {"AzureWebJobsStorage": "UseDevelopmentStorage=true", "ORDERS_PLAN_ID": sys.argv[1]}
os.environ |= {"OrdersServiceBus": "Endpoint=sb://localhost/;SharedAccessKeyName=a;SharedAccessKey=b"}
autoscaler = functions.autoscaler()
try:
    asyncio.run(autoscaler.evaluate(b"not a report"))
except Exception:
    pass
print(json.dumps(sorted(sys.modules)))
"""

PLAN = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/Microsoft.Web/serverfarms/p"


def test_the_app_is_indexed_without_an_sdk_of_azure():
    modules = python(IMPORT)
    tops = {name.partition(".")[0] for name in modules}
    azure = {".".join(name.split(".")[:2]) for name in modules if name.startswith("azure.")}

    assert azure == {"azure.functions"}
    assert tops & SDKS == set()
    assert len(modules) <= MODULES


def test_the_first_message_loads_the_sdk_of_tables_and_none_of_the_others():
    modules = python(DECIDE, PLAN)
    azure = {".".join(name.split(".")[:2]) for name in modules if name.startswith("azure.")}

    assert azure == {"azure.core", "azure.data", "azure.functions"}
    assert len(modules) <= AFTER_A_MESSAGE


@pytest.mark.skipif(sys.platform != "linux", reason="what is deployed is for Linux")
@pytest.mark.parametrize("name", [FUNCTIONS, IMAGE])
def test_what_is_deployed_is_small(name):
    """Measured on what is installed here, of the same versions."""
    sizes = {
        package: sum(
            file.locate().stat().st_size
            for file in metadata.files(package) or ()
            if "__pycache__" not in file.parts and file.locate().is_file()
        )
        for package in pinned(name)
        if package != "colorama"  # Windows
    }

    total = sum(sizes.values()) / 1e6
    most = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
    limit = MEGABYTES if name == FUNCTIONS else 75
    assert total < limit, {package: sizes[package] for package in most}


def test_what_is_deployed_is_what_was_tested():
    locked = pinned("requirements.lock")

    for name in (FUNCTIONS, IMAGE, STACK):
        assert {
            package: versions for package, versions in pinned(name).items() if versions - locked[package]
        } == {}


@pytest.mark.parametrize("group", ["functions", "process"])
def test_what_is_deployed_is_declared_as_in_the_package(group):
    extras = PROJECT["project"]["optional-dependencies"]
    declared = {*PROJECT["project"]["dependencies"], *extras["autoscaler"], *extras["consumer"]}

    assert set(PROJECT["dependency-groups"][group]) <= declared


BLOCKED = """
import importlib, json, sys
hidden, modules = json.loads(sys.argv[1]), sys.argv[2:]
sys.modules.update(dict.fromkeys(hidden))  # an import of None is refused, and a look for its file finds none
for name in modules:
    importlib.import_module(name)
print(json.dumps("ok"))
"""

RUNS_IN_THE_APP = (
    *(
        "function_app",
        "scaling.service.assembly",
        "scaling.doctor.examination",
        "scaling.scalers.arm.resources",
    ),
    *(
        "scaling.scalers.app_service.scaler",
        "scaling.scalers.cosmos.scaler",
        "scaling.collectors.service_bus.collector",
        "scaling.collectors.service_bus.peeks",
    ),
    *("scaling.collectors.event_hub.collector", "scaling.collectors.consumer_telemetry", "consumer.web.api"),
    *("scaling.collectors.storage_queue", "consumer.running.process", "consumer.running.hosted"),
    *("azure.mgmt.web.aio", "azure.servicebus.aio", "azure.servicebus.aio.management"),
    *("azure.storage.queue.aio", "azure.storage.blob.aio", "azure.eventhub.aio", "azure.cosmos.aio"),
)
RUNS_IN_THE_IMAGE = (
    *("consumer.cli.consume", "consumer.running.process", "consumer.running.supervisor"),
    *("consumer.sinks.sql.transactional", "consumer.sinks.cosmos.bulk", "consumer.stores.sql.checkpoints"),
    *("consumer.stores.blob.checkpoints", "consumer.stores.cosmos.dead_letters", "fsspec"),
)

RUNS_IN_THE_STACK = (
    *RUNS_IN_THE_APP,
    *RUNS_IN_THE_IMAGE,
    "devstack.__main__",
    "devstack.local",
    "devstack.function_host.__main__",
)


@pytest.mark.parametrize(
    ("name", "modules"),
    [(FUNCTIONS, RUNS_IN_THE_APP), (IMAGE, RUNS_IN_THE_IMAGE), (STACK, RUNS_IN_THE_STACK)],
)
def test_what_runs_finds_its_packages_among_those_that_are_deployed(name, modules):
    """Packages that are installed here and not there are hidden."""
    there = pinned(name).keys()
    hidden = [top for top, packages in provided().items() if not packages & there]

    assert python(BLOCKED, json.dumps(hidden), *modules) == "ok"


@cache
def provided():
    """Importable name -> packages that have it, one level deep in namespaces that several share."""
    found = {}
    for package in metadata.distributions():
        name = canonicalize_name(package.metadata["Name"])
        for file in package.files or ():
            parts = file.with_suffix("").parts
            if file.suffix not in {".py", ".so"} or "__pycache__" in parts or parts[0].startswith("."):
                continue
            depth = 3 if parts[:2] == ("azure", "mgmt") else 2 if parts[0] == "azure" else 1
            found.setdefault(".".join(part.partition(".")[0] for part in parts[:depth]), set()).add(name)
    ours = {"tidemark", *(path.parent.name for path in ROOT.glob("*/__init__.py"))}
    return {
        top: packages
        for top, packages in found.items()
        if top not in {*ours, "azure", "azure.mgmt", "azure.storage", "azure.__init__"}
    }


def test_every_file_of_a_lock_has_its_hash():
    for name in ("requirements.lock", "requirements-worker.txt", FUNCTIONS, IMAGE, STACK):
        text = (ROOT / name).read_text()
        entries = re.split(r"\n(?=[A-Za-z0-9])", text.strip())

        for entry in entries:
            first, *hashes = entry.split(" \\\n")
            assert Requirement(first).specifier, name
            assert hashes, first
            assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", each.rstrip()) for each in hashes), (
                first
            )
