"""What the doctor says of webhooks: each check made to fail, against a receiver on this machine."""

import asyncio

import msgspec
import pytest

from scaling.config.notify_table import Notify
from scaling.doctor import webhooks
from scaling.doctor.checks import Case, checks_of
from scaling.notices.handshake import Leave
from tests.support.servers.webhooks import KEY, OPS, receiving
from tests.unit.scaling.config.test_budget_table import text
from tidemark.foundation.checkup import Verdict

ASKING = msgspec.structs.replace(OPS, handshake=True)
ORIGIN = "func.azurewebsites.net"


WILLING = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "120"}


def settings_of(port, **changed):
    whole = {
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        "OPS_URL": f"http://localhost:{port}/hook?token=c2VjcmV0",
        "OPS_KEY": KEY,
        "TIDEMARK_TRUSTED_HOSTS": f"localhost:{port}",
        "WEBSITE_HOSTNAME": ORIGIN,
    }
    return {name: value for name, value in (whole | changed).items() if value is not None}


def found_by(settings, webhook=OPS):
    (check,) = webhooks.checks_of(Notify({"ops": webhook}), settings)
    return asyncio.run(check.call())


@pytest.mark.wire
def test_a_receiver_that_is_there_and_one_that_is_not():
    with receiving({"/hook?token=c2VjcmV0": (200, WILLING)}) as (port, requests):
        signed, asked = found_by(settings_of(port))
    assert [method for method, *_ in requests] == ["OPTIONS"]
    *_, gone = found_by(settings_of(1))

    assert (signed.verdict, signed.found) == (Verdict.OK, "messages are signed with the key in OPS_KEY")
    assert (asked.verdict, asked.found) == (Verdict.OK, f"lets {ORIGIN} send, at most 120 messages a minute")
    assert gone.verdict is Verdict.FAILED
    assert "cannot be reached: localhost" in gone.found
    assert "c2VjcmV0" not in gone.line


def test_messages_that_nobody_can_know_for_ours_are_a_warning():
    plain = msgspec.structs.replace(OPS, key_setting=None)

    assert webhooks._signed(plain).verdict is Verdict.WARNING
    assert "`key` of [notify.webhooks.ops]" in webhooks._signed(plain).remedy
    assert (
        webhooks._signed(msgspec.structs.replace(plain, headers={"aeg-sas-key": "K"})).verdict is Verdict.OK
    )


@pytest.mark.parametrize(
    ("webhook", "leave", "verdict", "found"),
    [
        (
            ASKING,
            Leave(405),
            Verdict.FAILED,
            "lets nobody send, not 'func.azurewebsites.net' (OPTIONS answered 405)",
        ),
        (ASKING, Leave(200, "other.example"), Verdict.FAILED, "lets 'other.example' send"),
        (OPS, Leave(200, "other.example"), Verdict.WARNING, "lets 'other.example' send"),
        (OPS, Leave(503), Verdict.WARNING, "answered 503"),
        (OPS, Leave(405), Verdict.OK, "takes no part in the handshake (OPTIONS answered 405)"),
        (ASKING, Leave(500, ORIGIN), Verdict.OK, f"lets {ORIGIN} send"),
    ],
)
def test_what_an_answer_says(webhook, leave, verdict, found):
    told = webhooks.verdict(webhook, leave, ORIGIN)

    assert (told.verdict, found in told.found) == (verdict, True), told


@pytest.mark.parametrize("missing", ["OPS_KEY", "OPS_URL"])
def test_a_setting_that_is_missing_is_told_as_part_of_the_configuration(tmp_path, missing):
    notify = '[notify.webhooks.ops]\nurl = "OPS_URL"\nkey = "OPS_KEY"\n'
    (tmp_path / "tidemark.toml").write_text(text("").replace("[targets.t.budget]\n", "") + notify)

    def checks(settings):
        return {(each.name, each.subject): each for each in checks_of(Case(settings, tmp_path, lambda: 0.0))}

    assert ("webhook", "ops") in checks(settings_of(9))
    (finding,) = asyncio.run(
        checks(settings_of(9, **{missing: None}))["configuration", "tidemark.toml"].call()
    )
    assert finding.verdict is Verdict.FAILED
    assert f"notify.webhooks.ops: app setting '{missing}' is not set" in finding.found
