"""Where settings come from, and that the committed file never stands in for something real."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from tidemark.__main__ import command_line
from tidemark.foundation import app_settings
from tidemark.foundation.app_settings import load_settings
from tidemark.foundation.azure.connections import storage_endpoint, table_service, transport_options
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.log import usage

ROOT = Path(__file__).resolve().parents[3]
LOCAL = {
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "OrdersServiceBus": "Endpoint=sb://localhost:5672;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true",
    "ORDERS_PLAN_ID": "local",
    "IDENTITY_ENDPOINT": "http://localhost:8444/msi/token",
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": LOCAL}))
    return tmp_path


def test_the_environment_wins_over_the_ignored_file_and_that_over_the_committed_one(root):
    (root / ".env").write_text("# ours\nexport A='ignored'\nB=ignored\nCOLLECT_SCHEDULE=0 * * * * *\n")

    settings = load_settings(root, {"B": "environment"})

    assert settings == {**LOCAL, "A": "ignored", "B": "environment", "COLLECT_SCHEDULE": "0 * * * * *"}


@pytest.mark.parametrize(
    "named",
    [
        {"AzureWebJobsStorage__accountName": "sttidemark"},
        {"AzureWebJobsStorage:accountname": "sttidemark"},
        {"AzureWebJobsStorage__tableServiceUri": "https://sttidemark.table.core.windows.net"},
        {"AzureWebJobsStorage": "DefaultEndpointsProtocol=https;AccountName=sttidemark;AccountKey=a2V5"},
    ],
)
@pytest.mark.parametrize("by", ["environment", ".env"])
def test_an_account_that_is_named_is_the_one_and_nothing_of_the_local_stack_comes_with_it(root, named, by):
    if by == ".env":
        (root / ".env").write_text("".join(f"{name}={value}\n" for name, value in named.items()))

    settings = load_settings(root, named if by == "environment" else {})

    assert settings == named
    assert "sttidemark" in (storage_endpoint(settings, "AzureWebJobsStorage", "table").address or str(named))


def test_a_subscription_that_is_named_and_is_not_that_of_the_file_takes_nothing_from_it(root):
    ours, other = (f"/subscriptions/{digit * 8}-0000-0000-0000-{digit * 12}" for digit in "0a")
    (root / "local.settings.json").write_text(json.dumps({"Values": {**LOCAL, "PLAN": f"{ours}/rest"}}))

    assert load_settings(root, {"A": "1"}, about=f"{other.upper()}/resourceGroups/rg") == {"A": "1"}
    assert load_settings(root, {"A": "1"}, about=ours) == {**LOCAL, "PLAN": f"{ours}/rest", "A": "1"}
    assert load_settings(root, {"A": "1"}, about="") == load_settings(root, {"A": "1"}, about=ours)


def test_a_file_that_names_no_subscription_is_read_for_any(root):
    assert load_settings(root, {}, about=f"/subscriptions/{'a' * 8}-0000-0000-0000-{'a' * 12}") == LOCAL


def test_a_connection_named_by_identity_takes_no_connection_string_from_the_file(root):
    named = {"OrdersServiceBus__fullyQualifiedNamespace": "sb-orders.servicebus.windows.net"}

    settings = load_settings(root, named)

    assert "OrdersServiceBus" not in settings
    assert settings["AzureWebJobsStorage"] == "UseDevelopmentStorage=true"


def test_a_connection_of_the_environment_takes_nothing_from_the_ignored_file_either(root):
    """A connection string wins over an identity of the same name, so the one below would win over the one above."""
    (root / ".env").write_text(
        "AzureWebJobsStorage=DefaultEndpointsProtocol=https;AccountName=other;AccountKey=a2V5\nA=1\n"
    )

    settings = load_settings(root, {"AzureWebJobsStorage__accountName": "sttidemark"})

    assert settings == {"AzureWebJobsStorage__accountName": "sttidemark", "A": "1"}


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"AzureWebJobsStorage": ""},
        {"AzureWebJobsStorage": "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=a2V5"},
        {"AzureWebJobsStorage": "AccountName=x;TableEndpoint=http://127.0.0.1:1/devstoreaccount1"},
    ],
)
def test_another_port_of_the_emulator_is_still_the_local_stack(root, named):
    assert load_settings(root, named)["ORDERS_PLAN_ID"] == "local"


@pytest.mark.parametrize("name", [".env", "local.settings.json"])
def test_a_file_that_cannot_be_read_is_named(root, name):
    (root / name).write_bytes(b"\xff{")

    with pytest.raises(SettingsError, match=f"{re.escape(name)} cannot be read"):
        load_settings(root, {})


# -- a person's own identity ------------------------------------------------------------------------------


async def test_after_az_login_the_commands_reach_the_account_with_that_identity(root, tmp_path, monkeypatch):
    """As far as it goes without Azure: the SDK's own credential chain, and a stand-in for the program `az`."""
    answer = {"accessToken": "token-of-ann", "expires_on": 4102444800, "tokenType": "Bearer"}
    (tmp_path / "az").write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    (tmp_path / "az").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv(
        "AZURE_TOKEN_CREDENTIALS", "AzureCliCredential"
    )  # the chain would look for a managed identity
    settings = load_settings(root, {"AzureWebJobsStorage__accountName": "sttidemark"})
    sent = []

    async with table_service(settings, "AzureWebJobsStorage", transport=Recording(sent)) as service:
        with pytest.raises(RecordedError):
            await service.get_service_stats()

    (request,) = sent
    assert request.url.startswith("https://sttidemark")
    assert request.headers["Authorization"] == "Bearer token-of-ann"


class RecordedError(Exception):
    """The request was seen; there is no answer."""


class Recording:
    """A transport that keeps requests to itself."""

    def __init__(self, sent):
        self.sent = sent

    async def send(self, request, **_):
        self.sent.append(request)
        raise RecordedError

    async def sleep(self, _):
        """At once."""

    async def open(self): ...

    async def close(self): ...

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_): ...


# -- what is committed ------------------------------------------------------------------------------------

PUBLIC_KEYS = {  # of emulators, in their documents
    "SAS_KEY_VALUE",
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==",
}


def test_the_committed_settings_hold_values_of_emulators_only():
    values = json.loads((ROOT / "local.settings.json").read_text(encoding="utf-8"))["Values"]
    text = "\n".join(values.values())

    hosts = re.findall(r"\w+://([\w.-]+)", text)
    assert hosts
    assert set(hosts) == {"localhost"}
    assert set(re.findall(r"Key=([^;\s]+)", text)) == PUBLIC_KEYS
    assert set(re.findall(r"subscriptions/([\w-]+)", text)) == {"00000000-0000-0000-0000-000000000000"}
    assert values["AzureWebJobsStorage"] == "UseDevelopmentStorage=true"
    assert not re.search(r"sig=|password|windows\.net|azure\.com", text, re.IGNORECASE)


def test_the_file_for_real_values_is_ignored_by_git_and_by_the_package():
    for rules in (".gitignore", ".funcignore"):
        assert ".env" in (ROOT / rules).read_text(encoding="utf-8").split()
    tracked = subprocess.run(
        ["git", "ls-files", ".env"], cwd=ROOT, capture_output=True, check=False, text=True
    )
    assert tracked.stdout == ""


def test_no_document_tells_anybody_to_put_real_values_into_the_committed_file():
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for sentence in re.split(r"(?<=[.:])\s", path.read_text(encoding="utf-8")):
            if "local.settings.json" in sentence:
                assert not re.search(
                    r"\b(replace|put|write|edit|set)\b.*local\.settings\.json", sentence, re.DOTALL
                ), sentence


def test_a_path_in_a_file_is_found_wherever_the_command_is_given(root, tmp_path_factory, monkeypatch):
    (root / "local.settings.json").write_text(
        json.dumps({"Values": {"TIDEMARK_CA_BUNDLE": "certs/local.pem"}})
    )
    (root / "certs").mkdir()
    (root / "certs" / "local.pem").write_text("pem")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    assert load_settings(root, {})["TIDEMARK_CA_BUNDLE"] == str(root / "certs" / "local.pem")
    assert transport_options(load_settings(root, {})) == {
        "connection_verify": str(root / "certs" / "local.pem")
    }
    assert load_settings(root, {"TIDEMARK_CA_BUNDLE": "mine.pem"})["TIDEMARK_CA_BUNDLE"] == "mine.pem"
    assert load_settings(root, {"TIDEMARK_CA_BUNDLE": ""})["TIDEMARK_CA_BUNDLE"] == ""
    (root / ".env").write_text("TIDEMARK_CA_BUNDLE=/etc/ssl/own.pem\n")
    assert load_settings(root, {})["TIDEMARK_CA_BUNDLE"] == "/etc/ssl/own.pem"


@pytest.mark.parametrize(
    ("files", "home", "folder"),
    [
        ((), "app", "app/deeper"),
        (("tidemark.toml", ".git"), "elsewhere", ""),
        (("tidemark.toml", "app/tidemark.toml", ".git"), "elsewhere", "app"),
        (("app/tidemark.toml", "app/deeper/host.json", ".git"), "elsewhere", "app"),
        (("app/local.settings.json", ".git"), "elsewhere", "app"),
        (("tidemark.toml", "app/.git"), "", "app/deeper"),
        (("app/tidemark.toml", "app/.git"), "elsewhere", "app"),
        # Without a repository up to the home folder, and outside of that nowhere.
        (("tidemark.toml",), "", ""),
        (("app/tidemark.toml",), "", "app"),
        (("tidemark.toml",), "app", "app/deeper"),
        (("app/tidemark.toml",), "app", "app"),
        (("tidemark.toml", "app/tidemark.toml"), "elsewhere", "app/deeper"),
        (("tidemark.toml", "app/tidemark.toml"), "/", "app/deeper"),
    ],
)
def test_a_command_is_about_the_nearest_folder_up_to_the_root_of_its_repository_or_the_home_folder(
    tmp_path, monkeypatch, files, home, folder
):
    inner = tmp_path / "app" / "deeper"
    inner.mkdir(parents=True)
    for name in files:
        (tmp_path / name).write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.chdir(inner)

    assert app_settings.command_folder() == tmp_path / folder


@pytest.mark.parametrize(
    ("command", "arguments", "folder", "named"),
    [
        ("lint", [], "app/deeper", True),
        ("order", [], "app/deeper", True),  # one of the group reads it
        ("lint", [], "app", False),  # the current folder has it
        ("lint", [], "elsewhere", False),
        ("lint", ["--root", "x"], "app/deeper", False),
        ("lint", ["--root=x"], "app/deeper", False),
        ("lint", ["--help"], "app/deeper", False),
        ("schema", [], "app/deeper", False),  # reads no file
    ],
)
def test_a_folder_above_the_current_one_is_named_where_a_command_reads_it(
    tmp_path, monkeypatch, command, arguments, folder, named
):
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setattr(usage, "COMMAND_ROOT", tmp_path / "app")
    commands = typer.main.get_command(command_line()).commands

    note = usage.app_folder_note(commands[command], arguments)

    assert bool(note) is named
    assert not named or f"settings of {tmp_path / 'app'}," in note


@pytest.mark.parametrize("border", ["st_uid", "st_dev"])
def test_no_folder_of_another_owner_or_file_system_is_looked_through(tmp_path, monkeypatch, border):
    """As /tmp: whoever may put a tidemark.toml there would decide which code is loaded as a rule."""
    inner, stat = tmp_path / "app" / "deeper", Path.stat

    def told(path, **options):
        found = stat(path, **options)
        owner, device = found.st_uid + (border == "st_uid"), found.st_dev + (border == "st_dev")
        return (
            SimpleNamespace(st_mode=found.st_mode, st_uid=owner, st_dev=device) if path == tmp_path else found
        )

    inner.mkdir(parents=True)
    for name in ("tidemark.toml", ".git"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(Path, "stat", told)
    monkeypatch.chdir(inner)

    assert app_settings.command_folder() == inner


def test_a_byte_order_mark_hides_no_setting(tmp_path):
    (tmp_path / ".env").write_text("\ufeffMINE=1\n", encoding="utf-8")
    (tmp_path / "local.settings.json").write_text('\ufeff{"Values": {"OTHER": "2"}}', encoding="utf-8")

    assert load_settings(tmp_path, {}) == {"MINE": "1", "OTHER": "2"}


def test_in_a_folder_that_was_deleted_a_command_finds_nothing(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert app_settings.command_folder() == Path()
    assert load_settings(app_settings.command_folder(), {}) == {}


def test_the_functions_of_a_clone_have_its_settings_from_everywhere_and_a_command_never_has(
    tmp_path, monkeypatch
):
    (tmp_path / "tidemark.toml").write_text("")
    monkeypatch.chdir(tmp_path)

    assert app_settings.app_folder() == ROOT
    assert app_settings.command_folder() == tmp_path
    monkeypatch.setattr(
        app_settings, "__file__", str(tmp_path / "site-packages/tidemark/foundation/app_settings.py")
    )
    assert app_settings.app_folder() == tmp_path


def test_lint_in_a_folder_of_ones_own_checks_the_file_there_and_names_it(tmp_path):
    (tmp_path / "tidemark.toml").write_text("[targets.mine]\nmaximum = 3\n")

    ended = subprocess.run(
        [sys.executable, "-m", "tidemark", "lint"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"},
    )

    assert ended.returncode == 1
    assert "tidemark.toml:1 targets.mine.rules" in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "named",
    [
        {"AzureWebJobsStorage": "DefaultEndpointsProtocol=https;AccountName=other;AccountKey=a2V5"},
        {"AzureWebJobsStorage": "UseDevelopmentStorage=true"},
        {"AzureWebJobsStorage__tableServiceUri": "https://other.table.core.windows.net"},
        {"azurewebjobsstorage:accountName": "other"},
        {},
    ],
)
@pytest.mark.parametrize("by", ["environment", ".env"])
def test_an_account_that_the_command_line_names_is_the_one(root, named, by):
    if by == ".env":
        (root / ".env").write_text("".join(f"{name}={value}\n" for name, value in named.items()))

    settings = load_settings(root, {**(named if by == "environment" else {}), "A": "1"}, account="sttidemark")

    assert settings == {"AzureWebJobsStorage__accountName": "sttidemark", "A": "1"}
    assert storage_endpoint(settings, "AzureWebJobsStorage", "table").connection_string is None


@pytest.mark.parametrize(
    "account", ["", "st", "St", "a" * 25, "st/../x", "sttidemark.table.core.windows.net"]
)
def test_what_is_no_account_is_refused(root, account):
    with pytest.raises(SettingsError, match="the name of a storage account is accepted"):
        load_settings(root, {}, account=account)


def test_what_is_a_persons_own_is_not_in_the_committed_file(root):
    (root / "local.settings.json").write_text(json.dumps({"Values": {"TIDEMARK_APP_KEY": "committed"}}))
    (root / ".env").write_text("TIDEMARK_APP_KEY=own\n")

    assert app_settings.own_settings(root, {"A": "1"}) == {"A": "1", "TIDEMARK_APP_KEY": "own"}


@pytest.mark.parametrize("line", ["A: b", "hunter2secret", "MY NAME=b", "=b"])
def test_a_line_of_env_that_is_no_setting_is_told_by_its_number_and_not_by_its_text(root, line):
    (root / ".env").write_text(f"# ours\n\nA=1\n{line}\n")

    with pytest.raises(SettingsError, match=r"\.env, line 4: is no NAME=value") as told:
        load_settings(root, {})

    assert line not in str(told.value)


@pytest.mark.parametrize("command", [["status"], ["order", "pause", "t"], ["discover"], ["doctor"]])
def test_every_command_says_of_unreadable_settings_that_they_are_in_error_and_names_no_usage(root, command):
    (root / "local.settings.json").write_text("{")

    ran = CliRunner().invoke(command_line(), [*command, "--root", str(root)])

    assert ran.exit_code == 1
    assert "error: " in ran.output
    assert "local.settings.json cannot be read" in " ".join(ran.output.split())
    assert "Usage" not in ran.output
