"""A pull that is killed anywhere goes on where it was: every minute once, none lost, gaps stay gaps."""

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.disk import record_disk_calls
from tidemark.commands.history import files, pull
from tidemark.commands.history.azure_monitor import Answer
from tidemark.commands.history.journal import Piece, opened, place_of
from tidemark.commands.history.model import DAY, MINUTE, SETTLING, Minute, PullError, PullPlan, Source, Span
from tidemark.commands.history.pull import ATTEMPTS, PATIENCE, REASKED, Puller
from tidemark.foundation.errors import UnavailableError

NOW = 1_800_000_030.0
LAST = int(NOW // MINUTE) - SETTLING
ARRIVALS = Source("/bus", "IncomingMessages", "total", "EntityName eq 'orders'")
PLAN = Source("/plan", "CpuPercentage", "average", "Instance eq '*'")
WANTED = PullPlan("plan", "bus/orders", ARRIVALS, PLAN)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch):
    """Hundreds of pulls ask for the disk thousands of times; what a kill leaves is the same without."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)


class Killed(BaseException):
    """The process ends here."""


def came(minute):
    return None if minute % 11 == 0 else float(minute % 7)


def ran(minute):
    return 1 + minute // 300 % 3


class Service:
    """Answers of a service that knows every minute; `fail` is asked before each."""

    def __init__(self, fail=lambda _request: None):
        self.asked = []
        self.fail = fail

    async def read(self, source, span, *, top):
        self.asked.append((source.resource_id, span))
        self.fail(len(self.asked))
        every = range(span.begin, span.end)
        if source == ARRIVALS:
            series = [[(at * 60.0, came(at)) for at in every]]
        else:
            series = [[(at * 60.0, 1.0 if number < ran(at) else None) for at in every] for number in range(3)]
        return Answer(series[:top], NOW)

    async def names(self, source, span):
        return []


class Watching:
    def __init__(self, kill_after=None):
        self.pieces, self.kill_after = 0, kill_after
        self.stories = []

    def begin(self, minutes):
        pass

    def advance(self, minutes):
        self.pieces += 1
        if self.pieces == self.kill_after:
            raise Killed

    def waiting(self, story):
        self.stories.append(story)


def run(path, service=None, shown=None, *, days=2, wanted=WANTED, clock=NOW, slept=None):
    async def sleep(seconds):
        if slept is not None:
            slept.append(seconds)

    puller = Puller(service or Service(), shown or Watching(), lambda: clock, sleep)
    return asyncio.run(puller.pull(wanted, days, path))


def expected(days):
    begin = LAST - days * DAY
    return {at: Minute(came(at), ran(at)) for at in range(begin, LAST)}


def test_a_pull_holds_every_minute_of_its_window(tmp_path):
    service = Service()

    result = run(tmp_path / "h.csv", service)

    assert service.asked[0] == ("/bus", Span(LAST - 1, LAST))  # whether it can be read, and Azure's clock
    assert result.minutes == expected(2)
    assert (result.new, result.untold, result.clock_offset) == (2 * DAY, 0, 0.0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 9), max_size=4),
    st.lists(st.integers(0, 60), max_size=4),
    st.sampled_from(["csv", "parquet"]),
)
def test_killed_at_any_request_and_with_its_last_line_torn_it_doubles_and_loses_nothing(kills, torn, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"h.{ending}"
        journal = place_of(path)
        for at, cut in zip(kills, [*torn, 0, 0, 0, 0], strict=False):

            def fail(request, at=at):
                if request == at:
                    raise Killed

            with suppress(Killed):
                run(path, Service(fail), days=4)
            if journal.exists():
                journal.write_bytes(journal.read_bytes()[: -cut or None])

        result = run(path, days=4)

        assert result.minutes == expected(4)
        assert files.load(path, "plan", "bus/orders") == expected(4)
        assert [*Path(folder).iterdir()] == [path]


def test_what_was_read_is_not_asked_for_again(tmp_path):
    path = tmp_path / "h.csv"
    with pytest.raises(Killed):
        run(path, shown=Watching(kill_after=2), days=4)
    service = Service()

    result = run(path, service, days=4)

    begin = LAST - 4 * DAY
    assert [span for name, span in service.asked if name == "/bus"][1:] == [
        Span(begin + 2 * DAY, begin + 3 * DAY),
        Span(begin + 3 * DAY, LAST),
    ]
    assert result.minutes == expected(4)


def test_what_is_read_after_a_torn_line_counts_too(tmp_path):
    path = tmp_path / "h.csv"
    with pytest.raises(Killed):
        run(path, shown=Watching(kill_after=2), days=4)
    torn = place_of(path)
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(Killed):
        run(path, shown=Watching(kill_after=2), days=4)
    service = Service()

    result = run(path, service, days=4)

    assert [span for name, span in service.asked if name == "/bus"][1:] == [Span(LAST - DAY, LAST)]
    assert result.minutes == expected(4)


def test_killed_between_the_file_and_the_end_of_its_journal_it_is_the_same_file(tmp_path, monkeypatch):
    path = tmp_path / "h.csv"
    save = files.save

    def then_die(*arguments):
        save(*arguments)
        raise Killed

    monkeypatch.setattr(pull.files, "save", then_die)
    with pytest.raises(Killed):
        run(path)
    assert place_of(path).exists()
    monkeypatch.setattr(pull.files, "save", save)
    before = path.read_bytes()

    result = run(path)

    assert result.new == 0
    assert path.read_bytes() == before
    assert not place_of(path).exists()


def test_a_day_later_only_the_day_is_asked_for_and_older_minutes_stay(tmp_path):
    path = tmp_path / "h.csv"
    run(path, days=1)
    later = NOW + (DAY + 7) * MINUTE  # not on the minute of the day before

    class Later(Service):
        async def read(self, source, span, *, top):
            answer = await super().read(source, span, top=top)
            return Answer(answer.series, later)

    service = Later()
    result = run(path, service, days=1, clock=later)

    assert sorted(result.minutes) == list(range(LAST - DAY, LAST + DAY + 7))
    assert result.new == DAY + 7
    assert {
        name: sum(map(len, (span for each, span in service.asked if each == name)))
        for name in ("/bus", "/plan")
    } == {
        "/bus": DAY + 7 + 1,
        "/plan": DAY + 7 + 1,
    }


def test_a_journal_of_another_pull_is_refused_unless_it_read_nothing(tmp_path):
    path = tmp_path / "h.csv"
    with pytest.raises(Killed):
        run(path, shown=Watching(kill_after=1))
    other = PullPlan("plan", "bus/invoices", ARRIVALS, PLAN)

    with pytest.raises(PullError, match=r"h\.csv\.partial holds what another pull has read"):
        run(path, wanted=other)

    assert run(path).minutes == expected(2)  # the one that was killed is finished, as the error says
    path.unlink()
    with pytest.raises(Killed):
        run(path, shown=Watching(kill_after=1))
    place_of(path).unlink()  # or its file is removed, and all is asked for again
    assert run(path, wanted=other).minutes == expected(2)
    path.unlink()
    place_of(path).write_bytes(b'{"version":0}\n{"begin":3,"arr')
    assert run(path, wanted=other).minutes == expected(2)


def test_a_piece_is_on_the_disk_when_it_is_added(tmp_path, monkeypatch):
    happened = record_disk_calls(monkeypatch)
    with opened(tmp_path / "h.csv", WANTED) as journal:
        happened.clear()
        journal.add(Piece(LAST, [1.0]))

        assert happened == [("fsync", "h.csv.partial")]


def test_two_pulls_to_one_file_are_told_apart(tmp_path):
    path = tmp_path / "h.csv"

    with opened(path, WANTED), pytest.raises(PullError, match="is in use by another pull to the same file"):
        run(path)

    assert run(path).minutes == expected(2)


def test_what_stands_at_the_place_is_looked_at_before_anything_is_asked(tmp_path):
    path = tmp_path / "h.csv"
    files.save(path, "other", "bus/orders", {LAST: Minute(1.0)})
    service = Service()

    with pytest.raises(PullError, match="for target 'other'"):
        run(path, service)

    assert service.asked == []
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("asked_for", "slept"),
    [
        (7.0, [7.0] * 7),
        (0.0, [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        (None, [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
    ],
)
def test_waits_are_those_asked_for_or_double_and_have_an_end(tmp_path, asked_for, slept):
    def fail(_request):
        raise UnavailableError("away", asked_for)

    waits, shown = [], Watching()
    with pytest.raises(PullError, match="away; what was read is kept"):
        run(tmp_path / "h.csv", Service(fail), shown, slept=waits)

    assert waits == slept
    assert len(shown.stories) == ATTEMPTS - 1


def test_a_wait_of_an_hour_is_left_to_a_later_pull(tmp_path):
    def fail(_request):
        raise UnavailableError("throttled", PATIENCE + 1)

    waits = []
    with pytest.raises(PullError, match="in 601 s at the earliest"):
        run(tmp_path / "h.csv", Service(fail), slept=waits)

    assert waits == []


def test_without_a_plan_nobody_asks_for_instances(tmp_path):
    service = Service()

    result = run(tmp_path / "h.csv", service, wanted=PullPlan("plan", "bus/orders", ARRIVALS, None))

    assert {name for name, _ in service.asked} == {"/bus"}
    assert {minute.instances for minute in result.minutes.values()} == {None}


def test_a_pull_without_a_plan_goes_on_where_it_was_killed(tmp_path):
    wanted = PullPlan("plan", "bus/orders", ARRIVALS, None)
    with suppress(Killed):
        run(tmp_path / "h.csv", shown=Watching(kill_after=1), wanted=wanted)
    service = Service()

    result = run(tmp_path / "h.csv", service, wanted=wanted)

    assert result.minutes == {at: Minute(came(at)) for at in range(LAST - 2 * DAY, LAST)}
    assert sum(len(span) for _, span in service.asked[1:]) == DAY


def test_minutes_left_out_are_asked_for_twice_again_and_no_more(tmp_path):
    class Forgetful(Service):
        async def read(self, source, span, *, top):
            answer = await super().read(source, span, top=top)
            return Answer(
                [[point for point in points if point[0] != (LAST - 5) * 60.0] for points in answer.series],
                NOW,
            )

    service = Forgetful()
    result = run(tmp_path / "h.csv", service, days=1, wanted=PullPlan("plan", "bus/orders", ARRIVALS, None))

    assert [span for _, span in service.asked[1:]] == [
        Span(LAST - DAY, LAST),
        *[Span(LAST - 5, LAST - 4)] * REASKED,
    ]
    assert REASKED == 2
    assert (result.untold, result.minutes[LAST - 5]) == (1, Minute())


def test_without_a_date_in_the_answer_this_machines_clock_counts(tmp_path):
    class Dateless(Service):
        async def read(self, source, span, *, top):
            return Answer((await super().read(source, span, top=top)).series)

    result = run(tmp_path / "h.csv", Dateless(), days=1, clock=NOW - 86_400.0)

    assert max(result.minutes) == LAST - DAY - 1
    assert result.clock_offset == 0.0
