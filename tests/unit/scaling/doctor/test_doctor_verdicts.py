"""What the doctor makes of what it was told: verdicts, and that each that is not ok says what to do."""

import pytest

from scaling.doctor import verdicts
from scaling.doctor.verdicts import (
    LATE_DECISIONS,
    SKEW_REFUSED,
    SKEW_WARNED,
    START,
    WAITING_FAILED,
    Runtime,
    Waiting,
    allows,
    troubled,
)
from scaling.model import Capacity
from scaling.ports import PoisonMessage
from tidemark.foundation.checkup import (
    Checkup,
    Finding,
    Needs,
    Trouble,
    Verdict,
    failed,
    ok,
    unknown,
    warning,
    worst_first,
)

NOW = 1_700_000_000.0
WRITE = "Microsoft.Web/serverfarms/write"
NEEDS = Needs("the 'Reader' role", "plan 'orders'")


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], False),
        ([{"actions": ["*"]}], True),
        ([{"actions": ["*"], "notActions": None}], True),
        ([{"actions": ["Microsoft.Web/serverFarms/*"]}], True),
        ([{"actions": ["microsoft.web/SERVERFARMS/write"]}], True),
        ([{"actions": ["*/read"]}], False),
        ([{"actions": ["Microsoft.Web/*/write"]}], True),
        ([{"actions": ["Microsoft.Web/serverfarms/writer"]}], False),
        ([{"actions": ["Microsoft.Web/serverfarms"]}], False),
        ([{"actions": ["*"], "notActions": ["Microsoft.Web/serverfarms/write"]}], False),
        ([{"actions": ["*"], "notActions": ["*/write"]}, {"actions": [WRITE]}], True),  # of another role
        ([{}], False),
    ],
)
def test_an_action_is_allowed_where_one_role_names_it_and_does_not_take_it_back(entries, allowed):
    assert allows(entries, WRITE) is allowed


def test_a_dot_in_a_name_is_no_pattern():
    assert not allows([{"actions": ["MicrosoftXWeb/serverfarms/write"]}], WRITE)
    assert not allows([{"actions": [WRITE]}], "MicrosoftXWeb/serverfarms/write")


@pytest.mark.parametrize("trouble", list(Trouble))
def test_every_trouble_has_a_remedy(trouble):
    found = troubled("capacity", "plan-orders", trouble, "story", NEEDS)

    assert found.verdict is not Verdict.OK
    assert found.remedy
    assert found.found == "story"


def test_only_what_nothing_may_be_concluded_from_is_unknown():
    found = {trouble: troubled("c", "s", trouble, "story", NEEDS).verdict for trouble in Trouble}

    assert {t for t, v in found.items() if v is Verdict.UNKNOWN} == {Trouble.SILENT, Trouble.BUSY}
    assert {t for t, v in found.items() if v is Verdict.WARNING} == {Trouble.DISABLED}


def test_a_refusal_names_role_and_place():
    remedy = troubled("capacity", "plan-orders", Trouble.REFUSED, "403", NEEDS).remedy

    assert NEEDS.role in remedy
    assert NEEDS.place in remedy


def clock(ahead):
    return verdicts.clock("here", ahead)


def queue(count, oldest):
    return verdicts.queue("metrics", Waiting(count, oldest), NOW)


def poison(count, *bodies):
    return verdicts.poison(count, [PoisonMessage("metrics-poison", each, None, each) for each in bodies])


def decisions(age, every=60.0):
    return verdicts.decisions("plan-orders", None if age is None else NOW - age, every, NOW)


def schedule(text):
    return verdicts.schedule("COLLECT_SCHEDULE", text, NOW)


def apps(workers):
    return verdicts.apps("plan-orders", workers, 10)


def capacity(current, advised):
    return verdicts.capacity("plan", Capacity(current, NOW, advised=advised), 4, 10)


LATE = LATE_DECISIONS * 60 + START
OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED
JUDGED = [  # a finding, its verdict, and what it says
    (
        verdicts.right("p", [{"actions": ["*/read"]}], WRITE, NEEDS),
        FAILED,
        f"may not {WRITE} (of 1 role there)",
    ),
    (queue(0, None), OK, ""),
    (queue(9, None), OK, "9 messages"),  # all of them are being worked on
    (queue(9, NOW - WAITING_FAILED + 1), OK, ""),
    (queue(1, NOW - WAITING_FAILED), FAILED, ""),
    (queue(1, NOW + 60), OK, ""),  # clocks differ
    (poison(0), OK, "none"),
    (poison(2, "first", "second"), WARNING, "2 messages that the host gave up on; the first: first ->"),
    (poison(1), WARNING, ""),  # gone again between two requests
    (decisions(None), WARNING, "none yet"),
    (decisions(0.0), OK, ""),
    (decisions(-5.0), OK, ""),
    (decisions(LATE), OK, ""),
    (decisions(LATE + 1), FAILED, ""),
    (decisions(3000.0, 3600.0), OK, ""),  # a slow schedule
    (clock(0.0), OK, ""),
    (clock(SKEW_WARNED - 0.1), OK, ""),
    (clock(20.0), WARNING, "20 s ahead of the service's"),
    (clock(-20.0), WARNING, "20 s behind the service's"),
    (clock(SKEW_WARNED), WARNING, ""),
    (clock(-SKEW_WARNED), WARNING, ""),
    (clock(SKEW_REFUSED), FAILED, ""),
    (clock(-SKEW_REFUSED), FAILED, ""),
    (schedule("0 */5 * * * *"), OK, "every 5 min at the most often, next at 2023-11-14 22:15:00Z"),
    (schedule("00:05:00"), OK, ""),
    (schedule(None), FAILED, "not set"),
    (schedule(" "), FAILED, "not set"),
    (schedule("0 0 0 31 2 *"), FAILED, "never fires"),
    (schedule("every minute"), FAILED, ""),
    (schedule("9999999999.00:00:00"), FAILED, ""),  # past what a calendar has
    (verdicts.time_zone(None), OK, "UTC"),
    (verdicts.time_zone("Europe/Paris"), WARNING, "Europe/Paris"),
    (apps(None), OK, "every app runs on every instance"),
    (apps({}), OK, "scaled by app"),
    (apps({"api": 10, "worker": 12}), OK, "each may run on 10 instances"),
    (apps({"api": 10, "worker": 1}), WARNING, "its maximum of 10: worker 1. More instances"),
    (apps({"worker": None}), WARNING, "worker unknown"),
    (apps({f"app{n}": 1 for n in range(5)}), WARNING, "app0 1, app1 1, app2 1, and 2 more"),
    (apps({"worker": 1}), WARNING, "numberOfWorkers=10"),
    (verdicts.autoscale("plan-orders", None), OK, ""),
    (verdicts.autoscale("plan-orders", "cpu-rule"), FAILED, "--name cpu-rule"),
    (capacity(2, advised=False), WARNING, "template"),
    (capacity(4, advised=False), OK, "4 now"),
    (capacity(11, advised=False), WARNING, "template"),
    (capacity(2, advised=True), OK, "another controller"),
]


@pytest.mark.parametrize(
    ("finding", "verdict", "words"), JUDGED, ids=lambda each: getattr(each, "check", None)
)
def test_what_was_found_is_judged_and_said(finding, verdict, words):
    assert (finding.verdict, words in finding.line) == (verdict, True), finding.line


def runtime(python=(3, 11), installed=None, pinned=None, **settings):
    return Runtime(python, installed or {}, pinned, settings)


def test_versions_that_are_as_tested():
    pinned = "# a comment\nazure-core==1.41.0\nazure-functions==1.26.0 ; python_full_version < '3.13'\nazure-functions==2.3.0 ; python_full_version >= '3.13'\ncolorama==0.4.6 ; sys_platform == 'win32'\n"
    found = verdicts.versions(
        runtime(installed={"azure-core": "1.41.0", "azure-functions": "2.3.0"}, pinned=pinned)
    )

    assert [each.verdict for each in found] == [Verdict.OK, Verdict.OK]
    assert found[1].found == "3 as in requirements.txt"


def test_versions_with_hashes_are_read_like_those_without():
    pinned = "azure-core==1.41.0 \\\n    --hash=sha256:abc\nAzure_Common==1.1 \\\n    --hash=sha256:def\n"
    found = verdicts.versions(runtime(installed={"azure-core": "1.0", "azure-common": "1.1"}, pinned=pinned))

    assert found[-1].verdict is Verdict.WARNING
    assert found[-1].found == "azure-core 1.0 instead of 1.41.0"


def test_many_differences_are_counted():
    pinned = "".join(f"p{index}==1\n" for index in range(9))
    found = verdicts.versions(runtime(installed={f"p{index}": "2" for index in range(9)}, pinned=pinned))

    assert found[-1].found.endswith("p4 2 instead of 1, and 4 more")


@pytest.mark.parametrize("python", [(3, 10), (3, 14)])
def test_a_python_that_was_not_tested(python):
    assert verdicts.versions(runtime(python))[0].verdict is Verdict.FAILED


def test_the_host_is_told_by_settings_that_flex_consumption_does_not_have():
    assert len(verdicts.versions(runtime())) == 2
    found = verdicts.versions(runtime(FUNCTIONS_EXTENSION_VERSION="~3", FUNCTIONS_WORKER_RUNTIME="python"))

    assert [(each.subject, each.verdict) for each in found[1:-1]] == [
        ("FUNCTIONS_EXTENSION_VERSION", Verdict.FAILED)
    ]


def test_an_identity_is_told_by_its_token():
    claims = {"appid": "a1", "oid": "o1", "xms_mirid": "/subscriptions/s/id-tidemark"}

    assert verdicts.identity("AzureResourceManager", claims).found == (
        "a token was issued to /subscriptions/s/id-tidemark, client id a1, object id o1"
    )
    assert verdicts.identity("AzureResourceManager", {}).found == "a token was issued"


# -- findings ------------------------------------------------------------------------------------------


def test_what_is_not_ok_says_what_to_do():
    with pytest.raises(ValueError, match="says what to do"):
        Finding("c", "s", Verdict.FAILED, "found")


def test_a_line_has_no_secret_and_is_one():
    told = failed("c", "s", "AccountKey=abc;\nsecond", "do").line

    assert "abc" not in told
    assert "\n" not in told
    assert told.endswith(" -> do")


def test_a_checkup_is_healthy_while_nothing_failed_or_is_unknown():
    fine, odd = ok("c", "s", "f"), warning("c", "s", "f", "r")

    assert Checkup((fine, odd)).is_healthy
    assert not Checkup((fine, failed("c", "s", "f", "r"))).is_healthy
    assert not Checkup((fine, unknown("c", "s", "f", "r"))).is_healthy
    assert Checkup((fine, odd, fine)).summary == "3 checks: 2 ok, 1 warning"


def test_a_document_is_worst_first_and_without_secrets():
    found = (
        ok("a", "s", "f"),
        warning("b", "s", "f", "r"),
        unknown("c", "s", "f", "r"),
        failed("d", "s", "pwd=x1", "r"),
    )

    assert [each.check for each in worst_first(found)] == ["d", "c", "b", "a"]
    document = Checkup(found).document()
    assert document["healthy"] is False
    assert document["checks"][0] == {
        "check": "d",
        "subject": "s",
        "verdict": "failed",
        "found": "pwd=***",
        "remedy": "r",
    }
