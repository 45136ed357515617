"""Turns the answers of calls into findings: all judgements of the doctor, and all its remedies. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from scaling.model import Capacity
from scaling.ports import PoisonMessage
from scaling.schedules import ncrontab
from tidemark.foundation.checkup import Finding, Needs, Trouble, failed, ok, unknown, warning
from tidemark.foundation.version import VERSION
from tidemark.foundation.wording import count_text, duration_text, number_text, time_text

SKEW_WARNED = 10.0
"""Seconds between two clocks that are a warning: a sample a minute is then clearly off its minute. Chosen."""

SKEW_REFUSED = 300.0
"""Seconds from which on reports are dropped as being of the future (CLOCK_TOLERANCE of the autoscaler)."""

WAITING_FAILED = 300.0
"""Seconds a message may wait in a queue of the app: the host empties them within seconds of its start. Chosen."""

LATE_DECISIONS = 3
"""Intervals without a decision after which the functions are taken for not running."""

START = 60.0
"""Seconds on top of these for a cold start."""

PYTHONS = ((3, 11), (3, 13))
HOST = "~4"  # the release of the Functions host that the extension bundle of host.json is for
DIFFERENCES_SHOWN = 5


_TRY_AGAIN = "run the doctor again in a minute; where it stays so, look at the service's health in the portal"
_NETWORK = "check the address in the settings, and firewall, private endpoint and DNS between the app and the service"


def troubled(check: str, subject: str, trouble: Trouble, text: str, needs: Needs) -> Finding:
    """The finding of a call that has no answer."""
    remedies = {
        Trouble.REFUSED: f"assign {needs.role} on {needs.place} to the identity, and wait up to ten minutes until it works",
        Trouble.NO_IDENTITY: (
            "give the app its managed identity (the page Identity in the portal, or azd provision), and set "
            "<connection>__clientId to that identity's client id; on your own machine: az login"
        ),
        Trouble.ABSENT: f"correct the name in tidemark.toml or in the app settings, or create it: {needs.place}",
        Trouble.SETTINGS: "correct the setting that is named",
        Trouble.DISABLED: f"switch it on again: {needs.place}",
        Trouble.BUSY: _TRY_AGAIN,
        Trouble.SILENT: f"{_NETWORK}; then run the doctor again",
        Trouble.UNREACHABLE: _NETWORK,
        Trouble.OTHER: f"read what the service says; where it is about rights, {needs.role} on {needs.place} is what is needed",
    }
    make = {Trouble.SILENT: unknown, Trouble.BUSY: unknown, Trouble.DISABLED: warning}.get(trouble, failed)
    return make(check, subject, text, remedies[trouble])


# -- identity and rights -----------------------------------------------------------------------------------


def identity(subject: str, claims: Mapping[str, Any]) -> Finding:
    """Whose token it was; `claims` are the token's own, empty where they cannot be read."""
    who = claims.get("xms_mirid") or claims.get("upn") or claims.get("unique_name") or ""
    ids = [
        f"{words} {claims[name]}"
        for name, words in (("appid", "client id"), ("oid", "object id"))
        if name in claims
    ]
    who_text = ", ".join([*([str(who)] if who else []), *ids])
    return ok("identity", subject, f"a token was issued{f' to {who_text}' if who_text else ''}")


def allows(entries: Sequence[Mapping[str, Any]], action: str) -> bool:
    """Whether Resource Manager's answer about permissions, an entry for each role that is assigned at the resource or above
    it, gives the right to `action`: a role names it in `actions` and not in its own `notActions`, whatever the case.
    """

    def names(patterns: Any) -> bool:
        return any(fnmatchcase(action.casefold(), str(pattern).casefold()) for pattern in patterns or ())

    return any(names(entry.get("actions")) and not names(entry.get("notActions")) for entry in entries)


def right(subject: str, entries: Sequence[Mapping[str, Any]], action: str, needs: Needs) -> Finding:
    """Whether the identity may do `action`, by Resource Manager's own word."""
    if allows(entries, action):
        return ok("right", subject, f"may {action}")
    refusal = f"may not {action} (of {count_text(len(entries), 'role')} there)"
    return troubled("right", subject, Trouble.REFUSED, refusal, needs)


def unknown_right(subject: str, action: str) -> Finding:
    """Who may not even ask what it may do; it may do it all the same."""
    return warning(
        "right",
        subject,
        f"whether it may {action} is not known",
        "add Microsoft.Authorization/permissions/read to its role (those of the templates and the built-in ones have it); "
        "or wait for the first change, which shows it",
    )


# -- what lies in them -------------------------------------------------------------------------------------


class Waiting(Struct, frozen=True):
    """A queue: how many messages, and since when the oldest that can be seen waits (None: there is none)."""

    count: int
    oldest: float | None


def queue(name: str, waiting: Waiting, now: float) -> Finding:
    """A queue that nobody empties: the host does not run the function it triggers."""
    if waiting.oldest is None or now - waiting.oldest < WAITING_FAILED:
        return ok("queue", name, f"{count_text(waiting.count, 'message')} waiting")
    age = duration_text(now - waiting.oldest)
    return failed(
        "queue",
        name,
        f"{count_text(waiting.count, 'message')} waiting, the oldest for {age}",
        "nobody empties it: check that the app runs and lists the functions scaling_logic and scaler, and read their "
        "invocations; an error while loading the app is in the log stream",
    )


_COST_OF_POISON = {
    "metrics-poison": "reports, which later ones have replaced",
    "actions-poison": "actions, which are sent again from the state while they are wanted",
    "notices-poison": "notices, which their webhooks never got",
}


def poison(count: int, messages: Sequence[PoisonMessage]) -> Finding:
    """Messages the host gave up on; `messages` are some of them, of every queue that has any."""
    if not count:
        return ok("poison", "queues", "none")
    first = f"; the first: {messages[0].body[:200]}" if messages else ""
    queues = sorted({message.queue for message in messages} or _COST_OF_POISON)
    lost = "; ".join(f"{name} holds {_COST_OF_POISON.get(name, 'messages')}" for name in queues)
    return warning(
        "poison",
        "queues",
        f"{count_text(count, 'message')} that the host gave up on{first}",
        f"read the exceptions of that function, mend the cause, then delete the messages of {', '.join(queues)}: they are "
        f"never tried again ({lost})",
    )


def decisions(target: str, last: float | None, interval: float, now: float) -> Finding:
    """Whether decisions are made as often as the schedule asks for; `last` is the newest one's time."""
    if last is None:
        return warning(
            "decisions",
            target,
            "none yet",
            f"wait {duration_text(interval + START)}, then run the doctor again; where there is still none, read the "
            "invocations of collect_metrics and scaling_logic",
        )
    age = now - last
    if age <= LATE_DECISIONS * interval + START:
        return ok("decisions", target, f"the last one {duration_text(max(0.0, age))} ago")
    return failed(
        "decisions",
        target,
        f"the last one {duration_text(age)} ago ({time_text(last)}), with one due every {duration_text(interval)}",
        "check that the app is not stopped, and read the invocations of collect_metrics (timer) and scaling_logic (queue)",
    )


def newer_state(text: str) -> Finding:
    """Rows of a newer release, which this one neither reads nor overwrites; `story` names one and what deleting it costs."""
    remedy = "deploy the newer release again; or delete the row of the table ScalingState that is named, at the cost that is named"
    return failed(
        "versions",
        "state",
        text,
        f"{remedy}, and run the doctor again: other targets may have such rows, too",
    )


# -- clocks and schedules ----------------------------------------------------------------------------------


def clock(subject: str, ahead: float) -> Finding:
    """This machine's clock against a service's; `ahead` in seconds, negative for one that is behind."""
    off = f"{number_text(abs(ahead))} s {'ahead of' if ahead > 0 else 'behind'} the service's"
    if abs(ahead) < SKEW_WARNED:
        return ok("clock", subject, f"less than {number_text(SKEW_WARNED)} s from the service's")
    remedy = "set this machine's clock by NTP; in Azure restart the app, which moves it to another machine"
    if abs(ahead) < SKEW_REFUSED:
        return warning("clock", subject, f"{off}: samples are put at wrong times", remedy)
    return failed("clock", subject, f"{off}: reports are dropped, signed requests are refused", remedy)


def schedule(setting: str, text: str | None, now: float) -> Finding:
    """A timer's schedule: without one that the host can read, none of its functions is listed."""
    accepted = "accepted is an NCRONTAB expression with seconds, such as 0 * * * * *, or hh:mm:ss"
    if text is None or not text.strip():
        return failed("schedule", setting, "not set", f"set the app setting {setting}; {accepted}")
    try:
        parsed = ncrontab.parse(text)
        following = parsed.next_after(datetime.fromtimestamp(now, UTC))
    except (ValueError, OverflowError) as error:
        return failed("schedule", setting, str(error), f"correct the app setting {setting}; {accepted}")
    every = duration_text(parsed.smallest_interval())
    due = time_text(following.timestamp())
    return ok("schedule", setting, f"'{text}': every {every} at the most often, next at {due}")


def time_zone(name: str | None) -> Finding:
    """Linux plans have no such setting: on Flex Consumption and Consumption it does not move a timer."""
    if not name:
        return ok("schedule", "time zone", "UTC")
    return warning(
        "schedule",
        "WEBSITE_TIME_ZONE",
        f"is '{name}'",
        "remove it on Consumption and Flex Consumption, where it is not supported, and write schedules in UTC",
    )


# -- external changes --------------------------------------------------------------------------------------


def autoscale(plan: str, holder: str | None) -> Finding:
    """Two autoscalers on one plan undo each other's work; ours then holds, and says so."""
    if holder is None:
        return ok("autoscale", plan, "no other autoscaler holds the plan")
    return failed(
        "autoscale",
        plan,
        f"the Azure Monitor autoscale setting '{holder}' is enabled and moves the same plan; Tidemark holds",
        f"disable one of the two: az monitor autoscale update --name {holder} --resource-group <its group> --enabled false, "
        "or remove the target from tidemark.toml",
    )


def capacity(target: str, running: Capacity, minimum: int, maximum: int) -> Finding:
    """Whether what runs is within the bounds of the policy, which the next evaluation brings it back to."""
    if running.advised:
        return ok("capacity", target, "nothing is changed here: another controller reads the decisions")
    text = f"{running.current} now" + ("" if running.ceiling is None else f", at most {running.ceiling}")
    if minimum <= running.current <= maximum:
        return ok("capacity", target, text)
    return warning(
        "capacity",
        target,
        f"{text}, outside the policy's {minimum} to {maximum}: somebody else set it, such as a deployment whose template writes "
        "the number of instances",
        'let the template leave the number alone (docs/deploying/releases.md, "Templates beside an autoscaler"), or widen the bounds; '
        "until then each deployment sets the capacity back",
    )


def apps(plan: str, workers: Mapping[str, int | None] | None, maximum: int) -> Finding:
    """Whether more instances of the plan are more instances of its apps; `workers` as of `calls.workers_of_apps`."""
    if workers is None:
        return ok("apps", plan, "every app runs on every instance of the plan")
    short = {name: count for name, count in sorted(workers.items()) if count is None or count < maximum}
    if not short:
        return ok("apps", plan, f"scaled by app (perSiteScaling), and each may run on {maximum} instances")
    shown = ", ".join(
        f"{name} {'unknown' if count is None else count}" for name, count in list(short.items())[:3]
    )
    more = f", and {len(short) - 3} more" if len(short) > 3 else ""
    return warning(
        "apps",
        plan,
        f"the plan scales by app (perSiteScaling), and these apps run on fewer instances than its maximum of {maximum}: "
        f"{shown}{more}. More instances of the plan do not run more of them",
        f"set numberOfWorkers of the app that does the work to {maximum}: az webapp update --name <app> --resource-group "
        f"<group> --set siteConfig.numberOfWorkers={maximum}; or turn per-app scaling off on the plan",
    )


def unknown_apps(plan: str) -> Finding:
    return warning(
        "apps",
        plan,
        "whether its apps run on all instances is not known: the identity may not read the plan's apps",
        "give it the 'Reader' role on the plan's resource group; or see that perSiteScaling of the plan is false",
    )


# -- versions ----------------------------------------------------------------------------------------------

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


class Runtime(Struct, frozen=True):
    """What the app runs on. `installed` by normalised name; `pinned` is the text of requirements.txt, if it is there."""

    python: tuple[int, int]
    installed: Mapping[str, str]
    pinned: str | None
    settings: Mapping[str, str]


def versions(runtime: Runtime) -> list[Finding]:
    return [_python(runtime), *_host(runtime.settings), _packages(runtime)]


def _python(runtime: Runtime) -> Finding:
    python = ".".join(map(str, runtime.python))
    low, high = (".".join(map(str, version)) for version in PYTHONS)
    if PYTHONS[0] <= runtime.python <= PYTHONS[1]:
        return ok("versions", "Python", f"{python}, Tidemark {VERSION}")
    return failed("versions", "Python", python, f"set the app's Python to {low} to {high}")


def _host(settings: Mapping[str, str]) -> list[Finding]:
    """Flex Consumption has neither setting; elsewhere both are needed."""
    wanted = {"FUNCTIONS_EXTENSION_VERSION": HOST, "FUNCTIONS_WORKER_RUNTIME": "python"}
    return [
        failed("versions", name, f"is '{settings[name]}'", f"set it to {value}")
        for name, value in wanted.items()
        if settings.get(name, value).strip() != value
    ]


def _packages(runtime: Runtime) -> Finding:
    """An installed package that is not the pinned one was never tested with this release."""
    if runtime.pinned is None:
        return ok("versions", "packages", "no requirements.txt here to compare with")
    accepted: dict[str, set[str]] = {}
    for name, version in _PIN.findall(runtime.pinned):
        accepted.setdefault(normal(name), set()).add(version)
    wrong = [
        f"{name} {runtime.installed[name]} instead of {' or '.join(sorted(versions_))}"
        for name, versions_ in accepted.items()
        if name in runtime.installed and runtime.installed[name] not in versions_
    ]
    if not wrong:
        return ok("versions", "packages", f"{len(accepted)} as in requirements.txt")
    more = f", and {len(wrong) - DIFFERENCES_SHOWN} more" if len(wrong) > DIFFERENCES_SHOWN else ""
    shown = ", ".join(wrong[:DIFFERENCES_SHOWN]) + more
    return warning("versions", "packages", shown, "deploy again with the build on the platform (azd deploy)")


def normal(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
