"""Two versions of an app collect and decide side by side, with reports that come late, twice or never: whose samples a window holds."""

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from scaling.measuring.windows import OVERLAP, as_asked, begun_anew, windows_after_report
from scaling.model import MetricFailure, MetricSample, MetricsReport
from scaling.window import EMPTY
from tests.support.scaling.runner import NOW, metric, policy

VALUES = {"old": 1.0, "new": 2.0, "": 3.0, "newest": 4.0}
"""What is read by each version: a window of one of them has one value only. Without a fingerprint: by 0.2.0."""


def version(fingerprint: str, **window):
    spec = structs.replace(metric(**window), fingerprint=fingerprint)
    return policy(metrics={"backlog": spec})


def reported(
    fingerprint: str, at: float, *, fails: bool = False, counter: int | None = None
) -> MetricsReport:
    samples = () if fails else (MetricSample("backlog", at, VALUES[fingerprint], counter),)
    failures = (MetricFailure("backlog", at, "no answer"),) if fails else ()
    fingerprints = {"backlog": fingerprint} if fingerprint else {}
    return MetricsReport("plan", at, samples, failures, fingerprints=fingerprints)


def test_a_report_from_before_the_window_began_does_not_count_however_many_versions_there_were():
    windows = {}
    for minute, collects in ((1, "old"), (3, "new"), (4, "newest"), (2, "old"), (2, "new")):
        at = NOW + 60.0 * minute
        windows = windows_after_report(version(collects), windows, reported(collects, at), now=NOW + 240.0)

    assert windows["backlog"].values == [VALUES["newest"]]


names = st.sampled_from(["old", "new"])
steps = st.lists(st.tuples(names, names, st.integers(0, 30), st.booleans()), max_size=40)


@given(steps, st.sampled_from([None, 0]))
@example([("old", "old", 0, False), ("new", "new", 1, False), ("old", "old", 0, False)], None)
def test_a_window_never_holds_samples_of_two_kinds_and_nobody_decides_by_another_kind(steps, counter):
    """Reports at any minutes, in any order."""
    windows = {}
    for collects, decides, minute, fails in steps:
        at = NOW + 60.0 * minute
        report = reported(collects, at, fails=fails, counter=counter)
        windows = windows_after_report(version(decides), windows, report, now=NOW + 1800.0)
        window = windows["backlog"]
        of = window.origin.fingerprint
        if window.readings is None:
            assert set(window.values) <= {VALUES[of]}
        else:
            assert set(window.readings.values) == {VALUES[of]}
        for name in VALUES:
            seen = as_asked(version(name), windows)["backlog"]
            assert seen == (window if name in {of, ""} else EMPTY)


@given(
    st.integers(1, 10),
    st.lists(st.tuples(st.booleans(), names, names, st.integers(1, 59)), min_size=1, max_size=40),
)
def test_a_window_begins_anew_once_however_long_the_former_version_runs_beside_the_new_one(before, mixed):
    """Each minute the new version reports (or fails), and in most of them the old one does, too; either decides on either."""
    windows, begun, now = {}, 0, NOW

    def report(collects, decides, at, **more):
        nonlocal windows, begun
        after = windows_after_report(version(decides), windows, reported(collects, at, **more), now=at)
        begun += len(begun_anew(windows, after))
        windows = after

    for _ in range(before):
        now += 60.0
        report("old", "old", now)
    now += 60.0
    report("new", "new", now)
    for fails, decides_new, decides_old, seconds in mixed:
        now += 60.0
        report("new", decides_new, now, fails=fails)
        report("old", decides_old, now + seconds)

    assert begun == 1
    assert windows["backlog"].origin.fingerprint == "new"


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([15.0, 60.0, 900.0]))
def test_the_version_that_runs_alone_counts_in_the_end(earlier, later, interval):
    """Old, new, and old again: not before so long as it takes to know that the new one is gone, and then for good."""
    windows, now = {}, NOW
    runs = [*["old"] * earlier, *["new"] * later, *["old"] * 40]
    for collects in runs:
        now += interval
        rules = version(collects, interval=interval, span=5 * interval)
        windows = windows_after_report(rules, windows, reported(collects, now), now=now)

    origin = windows["backlog"].origin
    gone = NOW + interval * (earlier + later)
    assert origin.fingerprint == "old"
    assert gone + OVERLAP < origin.since <= gone + OVERLAP + 2 * interval


@given(st.lists(st.tuples(st.sampled_from(["old", ""]), st.sampled_from(["old", ""])), max_size=30))
def test_processes_of_0_2_0_beside_those_of_this_release_empty_no_window(steps):
    """0.2.0 reports and keeps no fingerprint, so windows lose theirs now and then."""
    windows = {}
    for minute, (collects, decides) in enumerate(steps, 1):
        at = NOW + 60.0 * minute
        after = windows_after_report(version("old"), windows, reported(collects, at), now=at)
        assert begun_anew(windows, after) == ()
        assert len(after["backlog"].times) == min(minute, 5)
        windows = after
        if not decides:
            windows = {"backlog": structs.replace(after["backlog"], origin=EMPTY.origin)}
