"""A day of a fleet as Log Analytics has it: targets of mixed intervals, consumers of several instances, faults by the clock,
and lines that can be queried up to five minutes after they were written. Every alert rule is asked as often as the template
says, over the time that it says.
"""

import json
import random
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from tests.kusto.evaluator import Workspace
from tests.kusto.recording import moment
from tests.support.infra.templates import INFRA
from tests.support.scaling.runner import MINUTE, NOW
from tidemark.foundation.log.tail import Line, log_line

HOUR = 60 * MINUTE
LATEST = 5 * MINUTE
"""Seconds until a line can be queried, at most."""
QUERIES = {path.stem: path.read_text(encoding="utf-8") for path in (INFRA / "queries/alerts").glob("*.kql")}
FUNCTIONS = {
    path.stem: path.read_text(encoding="utf-8") for path in (INFRA / "queries/functions").glob("*.kql")
}
INTERVALS = {
    "quick": 15.0,
    "plain": MINUTE,
    "four": 4 * MINUTE,
    "five": 5 * MINUTE,
    "ten": 10 * MINUTE,
    "hourly": HOUR,
    "daily": 24 * HOUR,
}
COUNTED_FROM_A_LINE = {"silence", "effects", "collectors"}
"""Rules whose fault is first shown, or missed, when the target is looked at the next time."""
INSTANCES = {"flights": ("a", "b", "c"), "slow": ("x", "y")}
EVERY = {"flights": 30.0, "slow": 4 * MINUTE}
"""Seconds from one line of a consumer's instance to the next."""


@dataclass(frozen=True)
class Fault:
    """`subject` of an alert `rule` is out of order from one second of the day to another. `lasts`: how long after its end the
    alert may still be there, as of what is counted over a time.
    """

    rule: str
    subject: str
    since: float
    until: float
    lasts: float = 30 * MINUTE

    def at(self, now):
        return self.since <= now < self.until


def faults(hours):
    """Each fault once, and then again for other targets: as many as `hours` have room for, each in an hour of its own."""
    kinds = [
        ("dead-letters", "flights", 5, 6),
        ("collectors", "five: backlog", 3, 45),
        ("lag", "flights", 3, 50),
        ("functions", "collect_metrics", 2, 50),
        ("silence", "ten", 1, 50),
        ("effects", "plain", 7, 50),
        ("poison", "poison queues", 4, 40),
        ("consumer-stopped", "slow", 2, 45),
        ("collectors", "four: backlog", 2, 50),
        ("silence", "plain", 2, 40),
        ("collectors", "quick: backlog", 4, 50),
        ("effects", "five", 2, 55),
        ("lag", "slow", 3, 50),
        ("silence", "quick", 6, 40),
        ("collectors", "ten: capacity", 1, 55),
        ("functions", "scaling_logic", 4, 55),
        ("dead-letters", "slow", 24, 28.5),
        ("collectors", "plain: backlog", 8, 40),
        ("silence", "five", 2, 50),
        ("collectors", "hourly: backlog", 0, 59),
        ("consumer-stopped", "flights", 2, 45),
        ("silence", "all targets", 2, 50),
    ]
    # Each begins in an hour of its own, two hours apart for the long day: what an alert remembers is over by then.
    return [
        Fault(rule, subject, hour * HOUR + since * MINUTE, hour * HOUR + until * MINUTE)
        for hour, (rule, subject, since, until) in zip(range(1, hours), kinds, strict=False)
    ]


class Day:
    """The rows of all tables, sorted, and when each can be queried."""

    def __init__(self, hours, *, seed, delay, found, targets=tuple(INTERVALS)[:-1], verify=MINUTE):
        self.targets, self.verify = targets, verify
        self.random, self.delay, self.faults, self.seconds = random.Random(seed), delay, found, hours * HOUR
        self.rows = {
            name: [] for name in ("Decisions", "Reports", "Effects", "Consumers", "Log", "AppRequests")
        }
        self._fleet()
        self._consumers()
        self._host()
        self.tables = {name: self._parsed(name, rows) for name, rows in self.rows.items()}

    def _is(self, rule, subject, at):
        return any(fault.rule == rule and fault.subject == subject and fault.at(at) for fault in self.faults)

    def _put(self, table, at, kind, fields):
        """As `log_line` writes it; the fields are read by the functions of the workspace."""
        line = log_line(Line("a line", kind, {"at": NOW + at, **fields}))
        self.rows[table].append((at, line))

    def _fleet(self):
        quiet = lambda at: self._is("silence", "all targets", at)
        for target in self.targets:
            interval = INTERVALS[target]
            at = self.random.uniform(0, min(interval, MINUTE))
            count = 0
            while at < self.seconds:
                if not quiet(at) and not self._is("silence", target, at):
                    self._look(target, interval, at, count)
                count += 1
                at += interval * self.random.uniform(0.98, 1.02) if interval < HOUR else interval

    def _look(self, target, interval, at, count):
        # One read in forty fails of those that are read often: that is nobody's alert.
        odd = interval <= MINUTE and count % 40 == 17
        failed = odd or self._is("collectors", f"{target}: backlog", at)
        fields = {"target": target, "interval": interval, "metrics": {} if failed else {"backlog": 1.0}}
        fields["failures"] = [{"metric": "backlog", "message": "403", "reason": "x"}] if failed else None
        fields["capacity_error"] = "403" if self._is("collectors", f"{target}: capacity", at) else None
        self._put("Reports", at, "report", fields)
        self._put(
            "Decisions",
            at + 2.0,
            "decision",
            {"target": target, "reason": "within_target"},
        )
        since = next(
            (fault.since for fault in self.faults if fault.rule == "effects" and fault.subject == target),
            None,
        )
        if since is not None and self._is("effects", target, at):
            refused = target == "plain" and int((at - since) // MINUTE) % 15 == 0
            if refused or target != "plain":
                fields = {
                    "target": target,
                    "decision_id": f"{target}@{since}",
                    "reason": "refused" if refused else "failed",
                }
                self._put("Effects", at + 3.0, "effect", fields)
        elif count % 50 == 3:
            self._put(
                "Effects", at + 3.0, "effect", {"target": target, "decision_id": f"{at}", "reason": "applied"}
            )

    def _consumers(self):
        for consumer, instances in INSTANCES.items():
            for number, instance in enumerate(instances):
                at, seconds = self.random.uniform(0, EVERY[consumer]), EVERY[consumer]
                while at < self.seconds:
                    if not self._is("consumer-stopped", consumer, at):
                        self._tell(consumer, instance, number, at, seconds)
                    at += seconds

    def _tell(self, consumer, instance, number, at, seconds):
        behind = 12_000 if self._is("lag", consumer, at) else 2_000 + 500 * number
        if consumer == "slow" and behind > 10_000:
            behind = 7_000  # neither instance alone is beyond the limit
        letters = self._is("dead-letters", consumer, at) and number == 0
        fields = {
            "consumer": consumer,
            "instance": instance,
            "seconds": seconds,
            "lag": behind,
            "stopping": False,
        }
        self._put("Consumers", at, "consumer", {**fields, "dead_letters": int(letters), "expired": 0})

    def _host(self):
        for at in range(0, int(self.seconds), 60):
            if at % self.verify == 0:
                self._put("Log", at + 30.0, "check", {"targets": len(self.targets)})
                if self._is("poison", "poison queues", at):
                    self._put("Log", at + 30.0, "poison", {"count": 2, "queues": ["metrics-poison"]})
            for name, every in (("collect_metrics", 1), ("scaling_logic", 5), ("verify_effects", 1)):
                if at // 60 % every == 0:
                    failed = self._is("functions", name, at) or (at // 60 % 60 == 31 and every == 1)
                    self.rows["AppRequests"].append((float(at), (name, not failed)))

    def _parsed(self, name, rows):
        """Rows sorted by time, with the seconds at which each can be queried."""
        rows = sorted(rows, key=lambda row: row[0])
        late = [at + self.delay(self.random) for at, _ in rows]
        if name == "AppRequests":
            made = [
                {"TimeGenerated": moment(NOW + at), "OperationName": what, "Success": ok}
                for at, (what, ok) in rows
            ]
            return [at for at, _ in rows], late, made
        traces = [{"TimeGenerated": moment(NOW + at), "Message": line} for at, line in rows]
        made = Workspace({"AppTraces": traces}, FUNCTIONS, now=moment(NOW)).run(f"Tidemark{name}()")
        assert len(made) == len(rows)
        return [at for at, _ in rows], late, made

    def workspace(self, now, reach):
        """What can be queried at `now` of the last `reach` seconds."""
        seen = {}
        for name, (times, late, rows) in self.tables.items():
            chosen = range(bisect_left(times, now - reach), bisect_right(times, now))
            table = name if name.startswith("App") else f"Tidemark{name}"
            seen[table] = [rows[index] for index in chosen if late[index] <= now]
        return Workspace(seen, now=moment(NOW + now))


def minutes(duration):
    number, unit = re.fullmatch(r"PT?(\d+)([MHD])", duration).groups()
    return int(number) * {"M": 1, "H": 60, "D": 24 * 60}[unit]


def asked(day, rule, name):
    """(second, subjects) of each time that a rule is asked. The first hour is left to what alerts need to know."""
    every, reach = (minutes(rule[key]) * MINUTE for key in ("evaluationFrequency", "overrideQueryTimeRange"))
    (criterion,) = rule["criteria"]["allOf"]
    assert criterion["query"] == QUERIES[name]
    found, now = [], HOUR
    while now <= day.seconds:
        rows = day.workspace(now, reach).run(QUERIES[name])
        found.append((now, {row["Subject"] for row in rows}))
        now += every
    return found


def wrong(day, name, answers, *, within=20 * MINUTE):
    """What an alert did that it should not: raised without a fault, not raised in time, ended meanwhile or not at all."""
    problems = []
    named = [fault for fault in day.faults if fault.rule == name]
    for each in named:
        raised = [now for now, subjects in answers if each.subject in subjects and now >= each.since]
        of_this = [now for now in raised if now < each.until + each.lasts + LATEST]
        if not of_this:
            problems.append(f"{name} misses {each}")
            continue
        interval = INTERVALS.get(each.subject.partition(":")[0], 0.0) if name in COUNTED_FROM_A_LINE else 0.0
        if of_this[0] - each.since > within + interval:
            problems.append(f"{name} raises {each.subject} after {(of_this[0] - each.since) / MINUTE:g} min")
        between = {now for now, _ in answers if of_this[0] <= now <= of_this[-1]}
        if between - set(of_this) or of_this[-1] < min(each.until - 1, answers[-1][0]) - 16 * MINUTE:
            problems.append(f"{name} flaps or ends early for {each.subject}: {json.dumps(sorted(of_this))}")
    for now, subjects in answers:
        for subject in subjects:
            known = [each for each in named if each.subject == subject or each.subject == "all targets"]
            if not any(each.since <= now < each.until + each.lasts + LATEST for each in known):
                problems.append(f"{name} raises {subject} at {now / MINUTE:g} min, which is healthy")
    return problems
