"""tidemark.toml and app settings become typed policies; every problem is reported at once. Pure.

Nothing else reads the file or the environment. `%NAME%` in any text of the file stands for an app setting.
Messages show the file's own text, never a resolved setting, so secrets stay out of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from scaling.config import toml
from scaling.config.calendar_files import ReadFile, add_calendars
from scaling.config.checks import Finding, no_circle, one_target_each
from scaling.config.notify_table import Notify, read_notify
from scaling.config.policy import Policy, PolicySpec
from scaling.config.rule_registry import RuleError
from scaling.config.target_table import PlugIns, TargetTable
from scaling.schedules.timetable import Timetable, timetable
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.settings_reader import ConfigError, Problem, Reader, Shared, locate, whole

_AT_LINE = re.compile(r"at line (\d+)")

DEFAULT_SCHEDULE = "0 * * * * *"  # every minute, as the classic rule is asked
DEFAULT_RETENTION = 30 * 86_400.0


class Config(Struct, frozen=True):
    """Everything the shell needs, checked. `interval` is the collector's, `retention` the log's, `checks` that of the checks of
    effects (seconds).

    `findings` are what else is wrong, and ends one metric or target, not the app.
    """

    policies: Mapping[str, Policy]
    interval: float
    retention: float
    findings: tuple[Finding, ...] = ()
    notify: Notify = Notify()
    checks: float = 60.0


def decoded(data: bytes, *, name: str) -> str:
    """The text of a configuration file. Raises ConfigError naming the line that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")  # editors on Windows begin a file with a mark
    except UnicodeDecodeError as error:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ConfigError([Problem(f"{name}:1", "the file is UTF-16; save it as UTF-8")]) from None
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
        text = f"byte {column} of this line is 0x{data[error.start]:02x}, which is not UTF-8; save the file as UTF-8"
        raise ConfigError([Problem(f"{name}:{line}", text)]) from None


def load_config(
    text: str, *, name: str, settings: Mapping[str, str], plug_ins: PlugIns, read_file: ReadFile | None = None
) -> Config:
    """Parses and checks a configuration; `read_file` gets the files that it names. Raises ConfigError with every problem found."""
    shared = Shared(name, locate(text), settings)
    try:
        tree = toml.parsed(text)
    except ValueError as error:
        line = _AT_LINE.search(str(error))
        where = f"{name}:{line.group(1)}" if line else name
        raise ConfigError([Problem(where, str(error))]) from None
    return build_config(tree, shared, plug_ins=plug_ins, read_file=read_file)


def build_config(
    tree: Mapping[str, Any], shared: Shared, *, plug_ins: PlugIns, read_file: ReadFile | None = None
) -> Config:
    """The same for a tree that is parsed already. Raises ConfigError with every problem found."""
    settings = shared.settings
    add_calendars(tree, shared, read_file)
    root = Reader(tree, "", shared)
    version = root.take("version", 1, whole(1))
    if version != 1:
        root.problem("version", f"found {version}; this release accepts 1")
    collecting = _collecting(shared, settings)
    retention = DEFAULT_RETENTION
    if (kept := settings.get("SCALING_LOG_RETENTION")) is not None:
        try:
            retention = parse_duration(kept)
        except ValueError as error:
            shared.problems.append(_setting_problem("SCALING_LOG_RETENTION", error))
    defaults = root.table("defaults")
    targets = root.table("targets")
    notify = read_notify(root.table("notify"))
    root.finish()
    specs: dict[str, PolicySpec] = {}
    resources: dict[str, str] = {}
    findings: list[Finding] = []
    if targets is None or not targets.names():
        root.problem("targets", "no target is configured; add a table such as [targets.plan-orders]")
    else:
        for target in targets.names():
            reader = targets.table(target, defaults=defaults)
            if reader is not None:
                read = TargetTable(reader, target, collecting, plug_ins)
                specs[target] = read.read()
                findings += read.findings
                if read.resource:
                    resources[target] = read.resource
    one_target_each(resources, shared)
    policies: dict[str, Policy] = {}
    for name, spec in specs.items():
        with suppress(RuleError):  # noted rule by rule while reading
            policies[name] = Policy(spec)
    no_circle(policies, shared, tuple(specs))
    if shared.problems:
        raise ConfigError(shared.problems)
    return Config(policies, collecting.interval, retention, tuple(findings), notify, _checks(settings))


def _collecting(shared: Shared, settings: Mapping[str, str]) -> Timetable:
    """When samples are due; the platform reads schedules in UTC unless WEBSITE_TIME_ZONE names another zone."""
    schedule = settings.get("COLLECT_SCHEDULE", DEFAULT_SCHEDULE)
    try:
        even = timetable(schedule, "UTC")
    except ValueError as error:
        shared.problems.append(_setting_problem("COLLECT_SCHEDULE", error))
        return timetable(DEFAULT_SCHEDULE, "UTC")
    if even.is_even or "WEBSITE_TIME_ZONE" not in settings:
        return even
    try:
        return timetable(schedule, settings["WEBSITE_TIME_ZONE"])
    except ValueError as error:
        shared.problems.append(_setting_problem("WEBSITE_TIME_ZONE", error))
        return even


def _checks(settings: Mapping[str, str]) -> float:
    """Seconds between two checks of effects; the doctor reports a schedule that cannot be read."""
    try:
        return timetable(settings.get("VERIFY_SCHEDULE", DEFAULT_SCHEDULE), "UTC").interval
    except ValueError:
        return timetable(DEFAULT_SCHEDULE, "UTC").interval


def _setting_problem(name: str, error: ValueError) -> Problem:
    return Problem(f"app setting {name}", str(error))
