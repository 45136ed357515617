"""How long a command waits for an answer, and how long a service does."""

import asyncio
from contextlib import nullcontext

import pytest
import typer
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError, ServiceResponseError
from typer.testing import CliRunner

from scaling.calls.transport import GatedTransport
from tests.support.virtual_time import virtual_time
from tidemark.foundation.azure.connections import IdentityCredential, blob_container
from tidemark.foundation.azure.storage_requests import Reply, StorageRequests
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.log.usage import PATIENT, whole_command
from tidemark.foundation.pacing import patience
from tidemark.publisher.cli import command
from tidemark.publisher.errors import PublishUnavailableError
from tidemark.publisher.service_bus.core.errors import ClaimCheckError

PERSON = {}  # an environment without the variable
STORAGE = {"AzureWebJobsStorage": "AccountName=acme;AccountKey=a2V5"}


class Wire:
    """Answers as it is told, and counts seconds: those until an attempt fails, and those between two."""

    def __init__(self, answer, takes=0.0):
        self.answer, self.takes, self.attempts, self.waited = answer, takes, 0, 0.0

    async def send(self, *_):
        self.attempts += 1
        self.waited += self.takes
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def sleep(self, seconds):
        self.waited += seconds

    async def sign(self, method, url, headers):
        return url


def asked(wire):
    requests = StorageRequests(wire, wire, 3)
    try:
        asyncio.run(requests.send("GET", "https://acme.table.core.windows.net/t", {}))
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("error", "takes", "within"),
    [
        (ServiceResponseError("hangs"), lambda held: held.read, 30.0),
        (ServiceRequestError("nobody connects"), lambda held: held.connect, 8.0),
    ],
)
def test_a_person_has_an_error_soon_and_a_service_tries_for_longer(error, takes, within):
    service = Wire(error, takes(patience.held()))
    asked(service)
    with patience.of_a_person(PERSON):
        person = Wire(error, takes(patience.held()))
        assert asked(person) is error

    assert person.waited <= within < service.waited
    assert (person.attempts, service.attempts) == (2, 4)


def test_what_is_refused_is_repeated_for_a_person_as_for_a_service():
    with patience.of_a_person(PERSON):
        wire = Wire(Reply(503))
        asked(wire)

    assert wire.attempts == 4


def test_the_clients_of_the_sdks_wait_as_long_as_the_process_does():
    async def of(settings):
        container = blob_container(settings, "AzureWebJobsStorage", "c")
        retries, transport = container._config.retry_policy, GatedTransport({})
        await transport.close()
        await container.close()
        return retries.connect_retries, retries.read_retries, transport.connection_config

    with patience.of_a_person({"TIDEMARK_PATIENCE": "1m"}):
        *repeated, config = asyncio.run(of(STORAGE))
    *by_a_service, _ = asyncio.run(of(STORAGE))

    assert (repeated, by_a_service) == ([1, 1], [3, 3])
    assert (config.timeout, config.read_timeout) == (6.0, 24.0)


def test_an_identity_that_gave_a_command_no_token_is_not_waited_for_again(monkeypatch):
    opened = []

    def failing(identity):
        opened.append(identity)
        raise ClientAuthenticationError("no")

    def ask_twice():
        opened.clear()
        identity = IdentityCredential()
        for _ in range(2):
            with pytest.raises(ClientAuthenticationError):
                asyncio.run(identity.get_token("scope"))
        return len(opened)

    monkeypatch.setattr(IdentityCredential, "_open", failing)
    with patience.of_a_person(PERSON):
        assert ask_twice() == 1
    assert ask_twice() == 2


def test_an_identity_that_gave_tokens_before_is_asked_again_by_a_long_command(monkeypatch):
    answers = ["first", "fails", "second"]

    class Chain:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def get_token(self, *_):
            if (answer := answers.pop(0)) == "fails":
                raise ClientAuthenticationError("the instance metadata service is busy")
            return AccessToken(answer, 0)

    monkeypatch.setattr(IdentityCredential, "_open", lambda _: Chain())
    with patience.of_a_person(PERSON):
        identity = IdentityCredential()
        assert asyncio.run(identity.get_token("scope")).token == "first"
        with pytest.raises(ClientAuthenticationError):
            asyncio.run(identity.get_token("scope"))
        assert asyncio.run(identity.get_token("scope")).token == "second"


@pytest.mark.parametrize(
    ("text", "shown"), [("soon", "found 'soon'; accepted are durations"), ("2s", "found '2s'; accepted: 5s")]
)
def test_an_unusable_patience_is_named(text, shown):
    with (
        pytest.raises(SettingsError, match=f"TIDEMARK_PATIENCE: {shown}"),
        patience.of_a_person({"TIDEMARK_PATIENCE": text}),
    ):
        pass


def held_by(name, monkeypatch, text=""):
    monkeypatch.setenv("TIDEMARK_PATIENCE", text)
    held, program = [], typer.Typer()
    program.callback()(whole_command)
    program.command(name)(lambda: held.append(patience.held()))
    program.command("other")(lambda: None)
    result = CliRunner().invoke(program, [name])
    return held, result


@pytest.mark.parametrize("name", ["status", "dead-letters", "discover"])
def test_a_command_waits_as_a_person_does_and_only_while_it_runs(name, monkeypatch):
    (held,), _ = held_by(name, monkeypatch, "2m")

    assert held.whole == 120
    assert patience.held() is patience.OF_A_SERVICE


@pytest.mark.parametrize("name", sorted(PATIENT))
def test_what_runs_for_long_waits_as_a_service_does(name, monkeypatch):
    (held,), _ = held_by(name, monkeypatch)

    assert held is patience.OF_A_SERVICE


def test_a_command_ends_by_an_unusable_patience_before_it_does_anything(monkeypatch):
    held, result = held_by("status", monkeypatch, "soon")

    assert (held, result.exit_code) == ([], 1)
    assert "error: TIDEMARK_PATIENCE: found 'soon'" in result.output


# -- publish and send: long patience, but for the first answer


@pytest.mark.parametrize(("text", "count"), [("", 2), ("1m", 3)])
def test_nobody_at_an_address_is_an_error_after_a_second_attempt(text, count, monkeypatch):
    attempts = []

    async def refused(host, port):
        attempts.append((host, port))
        await asyncio.sleep(4.0)
        raise OSError(111, "Connection refused")

    monkeypatch.setattr(asyncio, "open_connection", refused)
    monkeypatch.setenv("TIDEMARK_PATIENCE", text)
    refusal = pytest.raises(ClaimCheckError, match=r"^acme cannot be reached: Connection refused$")
    with virtual_time() as run, refusal:
        run(command.check_reached("acme", 443, ClaimCheckError))

    assert attempts == [("acme", 443)] * count


@pytest.mark.parametrize(("no_proxy", "port", "asked"), [("", 443, 0), ("", 5671, 2), ("acme", 443, 2)])
def test_an_address_behind_a_proxy_is_asked_by_the_sdk_alone(no_proxy, port, asked, monkeypatch):
    attempts = []

    async def refused(*address):
        attempts.append(address)
        await asyncio.sleep(4.0)
        raise OSError(111, "Connection refused")

    monkeypatch.setattr(asyncio, "open_connection", refused)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with virtual_time() as run, pytest.raises(ClaimCheckError) if asked else nullcontext():
        run(command.check_reached("acme", port, ClaimCheckError))

    assert len(attempts) == asked


@pytest.mark.parametrize(("heard", "ends"), [(False, True), (True, False)])
def test_a_service_that_is_silent_ends_the_command_and_a_slow_transfer_does_not(heard, ends, monkeypatch):
    async def transfer():
        began = asyncio.get_running_loop().time()
        text = r"^acme is reached and does not answer: waited 30 s \(TIDEMARK_PATIENCE\)$"
        with pytest.raises(PublishUnavailableError, match=text) if ends else nullcontext():
            async with command.first_answer("acme", lambda: heard):
                await asyncio.sleep(100.0)
        return asyncio.get_running_loop().time() - began

    monkeypatch.delenv("TIDEMARK_PATIENCE", raising=False)
    with virtual_time() as run:
        assert run(transfer()) == pytest.approx(30.0 if ends else 100.0)
