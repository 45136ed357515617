"""The rule `schedule` and iCalendar files against a brute force: each minute of some days, and each day of some years."""

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scaling.rules.schedule import DAYS
from scaling.schedules.icalendar import days_of, last_day, parse_calendar
from tests.support.scaling.steady_views import rule, view

CHANGES = {
    "Europe/Amsterdam": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),  # half an hour
    "America/Sao_Paulo": ("2018-02-18", "2018-11-04"),  # at midnight
    "America/St_Johns": ("2010-03-14", "2010-11-07"),  # a minute past midnight: a day ends twice
    "Pacific/Apia": ("2011-12-30", "2012-04-01"),  # a day that never was
    "UTC": ("2026-12-31", "2028-02-29"),
}
MINUTE = timedelta(minutes=1)
MIDNIGHT = datetime.min.time()


@st.composite
def days_near_a_change(draw):
    zone = draw(st.sampled_from(sorted(CHANGES)))
    return ZoneInfo(zone), date.fromisoformat(draw(st.sampled_from(CHANGES[zone])))


@lru_cache
def walls_of(zone, day):
    """What the clock shows in each minute from three days before to three days after, by the time."""
    begin = datetime.combine(day, MIDNIGHT, tzinfo=UTC) - timedelta(days=3)
    times = [begin + MINUTE * count for count in range(6 * 1440)]
    return {at.timestamp(): at.astimezone(zone).replace(tzinfo=None, fold=0) for at in times}


def while_shown(walls, begin, end):
    """The times from the first one at which the clock shows `begin` or later to the last at which it shows less than `end`."""
    first = min((at for at, wall in walls.items() if wall >= begin), default=float("inf"))
    last = max((at for at, wall in walls.items() if wall < end), default=float("-inf"))
    return first, last


CLOCKS = st.integers(0, 96).map(lambda quarter: 15 * quarter)


def text_of(minute):
    return f"{minute // 60:02}:{minute % 60:02}"


@settings(max_examples=60, deadline=None)
@given(
    days_near_a_change(),
    st.sets(st.integers(0, 6), min_size=1),
    CLOCKS,
    CLOCKS,
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.booleans()), max_size=2),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.booleans()), max_size=2),
    st.none() | st.tuples(st.integers(-3000, 3000), st.integers(1, 3000)),
    st.lists(st.integers(1500, 6 * 1440 - 1500), min_size=1, max_size=40),
)
@example((ZoneInfo("Europe/Amsterdam"), date(2026, 10, 25)), {6}, 150, 180, [], [], None, [4350, 4380, 4410])
@example((ZoneInfo("Europe/Amsterdam"), date(2026, 10, 25)), {6}, 60, 150, [], [], None, [4360, 4390, 4410])
@example((ZoneInfo("UTC"), date(2026, 12, 31)), {4}, 0, 1440, [(0, 2, True)], [], None, [5760, 7300])
@example((ZoneInfo("America/St_Johns"), date(2010, 11, 7)), {6}, 0, 30, [], [], None, [4470, 4471, 4530])
def test_a_period_holds_in_just_the_minutes_that_a_brute_force_finds(
    near, days, begin, end, on, not_on, times, minutes
):
    zone, day = near
    walls = walls_of(zone, day)

    def entries(ranges):
        for offset, length, yearly in ranges:
            first = day + timedelta(days=offset)
            last = first + timedelta(days=length)
            yield (f"{first:%m-%d}..{last:%m-%d}" if yearly else f"{first}..{last}"), first, last

    def named(found, ranges):
        return any(first <= found <= last for _, first, last in entries(ranges))

    excepted = [text for text, *_ in entries(not_on)]
    barred = (1.0, 0.0)
    if times is not None:
        starts = datetime.combine(day, MIDNIGHT) + MINUTE * times[0]
        ends = starts + MINUTE * times[1]
        excepted.append(f"{starts:%Y-%m-%d %H:%M}..{ends:%Y-%m-%d %H:%M}")
        barred = while_shown(walls, starts, ends)
    period = {
        "days": ",".join(DAYS[each] for each in days),
        "from": text_of(begin),
        "to": text_of(end),
        **({"on": [text for text, *_ in entries(on)]} if on else {}),
        "not_on": excepted,
        "floor": 3,
    }
    subject = rule("schedule", periods=[period], time_zone=zone.key)
    held = []
    for offset in range(-5, 5):
        begun = day + timedelta(days=offset)
        if begun.weekday() in days and (not on or named(begun, on)) and not named(begun, not_on):
            midnight = datetime.combine(begun, MIDNIGHT)
            until = MINUTE * (end if begin < end else end + 1440)
            held.append(while_shown(walls, midnight + MINUTE * begin, midnight + until))
    ordered = sorted(walls)
    for minute in minutes:
        at = ordered[minute]
        barred_now = barred[0] <= at <= barred[1]
        expected = any(first <= at <= last for first, last in held) and not barred_now
        assert (subject.evaluate(view(now=at)).floor == 3) == expected, (walls[at], period)


EVENTS = st.lists(
    st.tuples(
        st.dates(date(2019, 1, 1), date(2024, 12, 31)),
        st.integers(1, 40),
        st.sampled_from(["", "forever", "until", "count"]),
        st.integers(1, 4),
        st.sets(st.integers(2019, 2026), max_size=2),
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.lists(st.dates(date(2019, 1, 1), date(2030, 12, 31)), min_size=1, max_size=30))
def test_the_days_of_a_calendar_are_those_of_its_events_written_out(events, asked):
    lines = ["BEGIN:VCALENDAR"]
    expected = set()
    for begin, days, kind, amount, skipped in events:
        occurrences = [begin]
        if kind:
            in_years = [(year, begin) for year in range(begin.year, 2035)]
            leap = (begin.month, begin.day) == (2, 29)
            occurrences = [b.replace(year=y) for y, b in in_years if not leap or y % 4 == 0]
        until = date(begin.year + amount, 6, 30)
        if kind == "until":
            occurrences = [occurrence for occurrence in occurrences if occurrence <= until]
        if kind == "count":
            occurrences = occurrences[:amount]
        gone = [occurrence for occurrence in occurrences if occurrence.year in skipped]
        expected |= {
            occurrence + timedelta(days=n)
            for occurrence in occurrences
            if occurrence not in gone
            for n in range(days)
        }
        lines += ["BEGIN:VEVENT", f"DTSTART;VALUE=DATE:{begin:%Y%m%d}"]
        lines += [f"DTEND;VALUE=DATE:{begin + timedelta(days=days):%Y%m%d}"]
        lines += {
            "": [],
            "forever": ["RRULE:FREQ=YEARLY"],
            "until": [f"RRULE:FREQ=YEARLY;UNTIL={until:%Y%m%d}"],
            "count": [f"RRULE:FREQ=YEARLY;COUNT={amount}"],
        }[kind]
        lines += [f"EXDATE;VALUE=DATE:{','.join(f'{each:%Y%m%d}' for each in gone)}"] if gone else []
        lines += ["END:VEVENT"]
    found = parse_calendar("\r\n".join([*lines, "END:VCALENDAR", ""]).encode())

    assert [days_of(found, day) for day in asked] == [day in expected for day in asked]
    is_endless = any(kind == "forever" for _, _, kind, _, _ in events)
    assert last_day(found) == (None if is_endless else max(expected, default=None))


@settings(max_examples=60, deadline=None)
@given(
    st.dates(date(2019, 1, 1), date(2026, 12, 31)),
    st.booleans(),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 20),
    st.lists(st.dates(date(2019, 1, 1), date(2040, 12, 31)), min_size=1, max_size=30),
)
def test_an_nth_weekday_is_that_of_each_years_month(begin, from_end, by_position, count, days, asked):
    """The weekday is counted from the begin of the month, or from its end."""
    month = [date(begin.year, begin.month, 1) + timedelta(days=n) for n in range(31)]
    same = [day for day in month if day.month == begin.month and day.weekday() == begin.weekday()]
    nth = same.index(begin) - len(same) if from_end else same.index(begin) + 1
    nth = nth if abs(nth) < 5 else -1 if nth > 0 else 1
    begin = same[nth] if nth < 0 else same[nth - 1]
    weekday = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")[begin.weekday()]
    by = f"BYDAY={weekday};BYSETPOS={nth}" if by_position else f"BYDAY={nth}{weekday}"
    text = f"BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:{begin:%Y%m%d}\nDURATION:P{days}D\nRRULE:FREQ=YEARLY;BYMONTH={begin.month};{by};COUNT={count}\nEND:VEVENT\nEND:VCALENDAR"
    found = parse_calendar(text.encode())

    expected = set()
    for year in range(begin.year, begin.year + count):
        every = [date(year, 1, 1) + timedelta(days=n) for n in range(365)]
        every = [day for day in every if day.month == begin.month and day.weekday() == begin.weekday()]
        if (
            begin.month == 12
            and (last := date(year, 12, 31)).weekday() == begin.weekday()
            and last not in every
        ):
            every.append(last)
        first = every[nth] if nth < 0 else every[nth - 1]
        expected |= {first + timedelta(days=n) for n in range(days)}
    assert [days_of(found, day) for day in [*asked, *sorted(expected)]] == [
        day in expected for day in [*asked, *sorted(expected)]
    ]


PARTS = st.sampled_from(
    [
        *("BEGIN:VCALENDAR", "END:VCALENDAR", "BEGIN:VEVENT", "END:VEVENT", "DTSTART;VALUE=DATE:20261225"),
        *(
            "DTSTART:20261332",
            "DTEND:20261226",
            "RRULE:FREQ=YEARLY",
            "RRULE:FREQ=SECONDLY",
            "RRULE:;=;COUNT=9",
            "RRULE:FREQ=YEARLY;BYMONTH=12;BYDAY=4FR;COUNT=500",
            "RDATE:20261225,20261225",
            "UID:a",
            "RECURRENCE-ID:20261225",
            "DTEND:20261226T000000",
        ),
        *("RRULE:FREQ=YEARLY;COUNT=²", "EXDATE:20261225,", "DURATION:P1D", "\t:", ";"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PARTS | st.text(max_size=20), max_size=12).map("\n".join).map(str.encode)
    | st.binary(max_size=60)
)
def test_whatever_a_file_holds_it_is_read_or_refused_with_its_line(data):
    try:
        days_of(parse_calendar(data), date(2026, 12, 25))
    except ValueError as error:
        where = str(error)[:5]
    else:
        where = "line "
    assert where == "line "
