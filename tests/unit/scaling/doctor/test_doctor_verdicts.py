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


def test_a_right_that_is_missing_names_the_action():
    found = verdicts.right("plan-orders", [{"actions": ["*/read"]}], WRITE, NEEDS)

    assert (found.verdict, found.found) == (Verdict.FAILED, f"may not {WRITE} (of 1 role there)")


@pytest.mark.parametrize(
    ("waiting", "verdict"),
    [
        (Waiting(0, None), Verdict.OK),
        (Waiting(9, None), Verdict.OK),  # all of them are being worked on
        (Waiting(9, NOW - WAITING_FAILED + 1), Verdict.OK),
        (Waiting(1, NOW - WAITING_FAILED), Verdict.FAILED),
        (Waiting(1, NOW + 60), Verdict.OK),  # clocks differ
    ],
)
def test_a_queue_is_judged_by_its_oldest_message(waiting, verdict):
    assert verdicts.queue("metrics", waiting, NOW).verdict is verdict


def test_poison_is_a_warning_with_its_first_body():
    assert verdicts.poison(0, []).verdict is Verdict.OK
    found = verdicts.poison(
        2, [PoisonMessage("metrics-poison", str(n), None, n) for n in ("first", "second")]
    )

    assert (found.verdict, found.found) == (
        Verdict.WARNING,
        "2 messages that the host gave up on; the first: first",
    )
    assert verdicts.poison(1, []).verdict is Verdict.WARNING  # gone again between two requests


@pytest.mark.parametrize(
    ("age", "verdict"),
    [
        (None, Verdict.WARNING),
        (0.0, Verdict.OK),
        (-5.0, Verdict.OK),
        (LATE_DECISIONS * 60 + START, Verdict.OK),
        (LATE_DECISIONS * 60 + START + 1, Verdict.FAILED),
    ],
)
def test_decisions_are_judged_by_the_schedule(age, verdict):
    last = None if age is None else NOW - age

    assert verdicts.decisions("plan-orders", last, 60.0, NOW).verdict is verdict


def test_a_slow_schedule_is_waited_for():
    assert verdicts.decisions("plan-orders", NOW - 3000, 3600.0, NOW).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [
        (0.0, Verdict.OK),
        (SKEW_WARNED - 0.1, Verdict.OK),
        (SKEW_WARNED, Verdict.WARNING),
        (-SKEW_WARNED, Verdict.WARNING),
        (SKEW_REFUSED, Verdict.FAILED),
        (-SKEW_REFUSED, Verdict.FAILED),
    ],
)
def test_a_clock_is_judged_by_how_far_it_is_off(ahead, verdict):
    assert verdicts.clock("here", ahead).verdict is verdict


def test_a_clock_says_in_which_direction_it_is_off():
    assert "20 s ahead of the service's" in verdicts.clock("here", 20.0).found
    assert "20 s behind the service's" in verdicts.clock("here", -20.0).found


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("0 * * * * *", Verdict.OK),
        ("00:05:00", Verdict.OK),
        (None, Verdict.FAILED),
        (" ", Verdict.FAILED),
        ("0 0 0 31 2 *", Verdict.FAILED),
        ("every minute", Verdict.FAILED),
        ("9999999999.00:00:00", Verdict.FAILED),  # past what a calendar has
    ],
)
def test_a_schedule_is_one_that_the_host_reads(text, verdict):
    assert verdicts.schedule("COLLECT_SCHEDULE", text, NOW).verdict is verdict


def test_a_schedule_tells_when_it_is_due():
    assert verdicts.schedule("COLLECT_SCHEDULE", "0 */5 * * * *", NOW).found == (
        "'0 */5 * * * *': every 5 min at the most often, next at 2023-11-14 22:15:00Z"
    )


def test_a_time_zone_is_for_plans_that_know_one():
    assert verdicts.time_zone(None).verdict is Verdict.OK
    assert verdicts.time_zone("Europe/Paris").verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("workers", "verdict", "told"),
    [
        (None, Verdict.OK, "every app runs on every instance"),
        ({}, Verdict.OK, "scaled by app"),
        ({"api": 10, "worker": 12}, Verdict.OK, "each may run on 10 instances"),
        ({"api": 10, "worker": 1}, Verdict.WARNING, "its maximum of 10: worker 1. More instances"),
        ({"worker": None}, Verdict.WARNING, "worker unknown"),
        ({f"app{n}": 1 for n in range(5)}, Verdict.WARNING, "app0 1, app1 1, app2 1, and 2 more"),
    ],
)
def test_a_plan_that_scales_by_app_is_told_where_more_instances_are_no_more_of_an_app(workers, verdict, told):
    found = verdicts.apps("plan-orders", workers, 10)

    assert found.verdict is verdict
    assert told in found.found
    assert verdict is Verdict.OK or "numberOfWorkers=10" in found.remedy


def test_another_autoscaler_is_named_with_the_command_that_switches_it_off():
    assert verdicts.autoscale("plan-orders", None).verdict is Verdict.OK
    found = verdicts.autoscale("plan-orders", "cpu-rule")

    assert found.verdict is Verdict.FAILED
    assert "--name cpu-rule" in found.remedy


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


@pytest.mark.parametrize(
    ("current", "advised", "verdict"),
    [
        (2, False, Verdict.WARNING),
        (4, False, Verdict.OK),
        (11, False, Verdict.WARNING),
        (2, True, Verdict.OK),
    ],
)
def test_a_capacity_outside_the_policys_bounds_is_told_with_what_sets_it_back(current, advised, verdict):
    found = verdicts.capacity("plan", Capacity(current, NOW, advised=advised), 4, 10)

    assert found.verdict is verdict
    assert (verdict is Verdict.OK) == ("template" not in found.line)
