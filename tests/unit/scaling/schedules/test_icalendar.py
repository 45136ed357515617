"""Which iCalendar files are read, what is refused of others, and at which line."""

from datetime import date

import pytest
from msgspec import structs

from scaling.schedules.icalendar import MAX_BYTES, MAX_EVENTS, Event, parse_calendar


def calendar(*lines, end="\r\n"):
    return end.join(
        ["BEGIN:VCALENDAR", "VERSION:2.0", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR", ""]
    )


CHRISTMAS = Event(begin=date(2026, 12, 25))
YEARLY = Event(begin=date(2026, 12, 25), yearly=True)
START = "DTSTART;VALUE=DATE:20261225"
THURSDAY = "DTSTART;VALUE=DATE:20261126"
THANKS = Event(begin=date(2026, 11, 26), yearly=True, nth=4)
AND = ("END:VEVENT", "BEGIN:VEVENT")
MIDNIGHT = "DTSTART;TZID=Europe/Berlin:20261225T000000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (calendar(START), [CHRISTMAS]),
        (calendar(START, end="\n"), [CHRISTMAS]),
        ("\ufeff" + calendar(START, end="\r"), [CHRISTMAS]),
        (calendar(START, "DTEND;VALUE=DATE:20261226"), [CHRISTMAS]),
        (calendar(START, "DTEND;VALUE=DATE:20261225"), [CHRISTMAS]),
        (calendar(START, "DTEND;VALUE=DATE:20261227"), [Event(begin=date(2026, 12, 25), days=2)]),
        (calendar(START, "DURATION:P1W"), [Event(begin=date(2026, 12, 25), days=7)]),
        (calendar("dtstart;value=date:20261225"), [CHRISTMAS]),
        (calendar('DTSTART;X-A="a:b;c";VALUE=DATE:20261225'), [CHRISTMAS]),
        (calendar("DTSTART;VALUE=D", " ATE:2026", "\t1225"), [CHRISTMAS]),
        (calendar(START, "SUMMARY:Christmas\\, day one", "TRANSP:TRANSPARENT", "X-A;B=C:D"), [CHRISTMAS]),
        (calendar(START, "BEGIN:VALARM", "DURATION:PT15M", "RDATE:20260101", "END:VALARM"), [CHRISTMAS]),
        (calendar(START, "STATUS:CANCELLED"), []),
        (calendar(START, "RRULE:FREQ=YEARLY"), [YEARLY]),
        (calendar(START, "RRULE:FREQ=YEARLY;INTERVAL=1;BYMONTH=12;BYMONTHDAY=25;WKST=MO"), [YEARLY]),
        (
            calendar(START, "RRULE:FREQ=YEARLY;COUNT=2"),
            [Event(begin=date(2026, 12, 25), yearly=True, until=date(2027, 12, 25))],
        ),
        (
            calendar("DTSTART;VALUE=DATE:20240229", "RRULE:FREQ=YEARLY;COUNT=2"),
            [Event(begin=date(2024, 2, 29), yearly=True, until=date(2028, 2, 29))],
        ),
        (
            calendar(
                START, "RRULE:FREQ=YEARLY;UNTIL=20300101T000000Z", "EXDATE;VALUE=DATE:20271225,20281225"
            ),
            [
                Event(
                    begin=date(2026, 12, 25),
                    yearly=True,
                    until=date(2030, 1, 1),
                    skipped=(date(2027, 12, 25), date(2028, 12, 25)),
                )
            ],
        ),
        (
            calendar(START).replace(
                "BEGIN:VEVENT",
                "BEGIN:VTIMEZONE\r\nBEGIN:STANDARD\r\nEND:STANDARD\r\nEND:VTIMEZONE\r\nBEGIN:VEVENT",
            ),
            [CHRISTMAS],
        ),
        ("BEGIN:VCALENDAR\nEND:VCALENDAR", []),
        (calendar(THURSDAY, "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH"), [THANKS]),
        (calendar(THURSDAY, "RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=TH;BYSETPOS=4;BYMONTH=11"), [THANKS]),  # as Outlook writes it
        (calendar(THURSDAY, "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=+4TH;COUNT=3"), [structs.replace(THANKS, until=date(2028, 11, 23))]),
        (
            calendar("DTSTART;VALUE=DATE:20260525", "RRULE:FREQ=YEARLY;BYMONTH=5;BYDAY=-1MO;UNTIL=20280529"),
            [Event(begin=date(2026, 5, 25), yearly=True, nth=-1, until=date(2028, 5, 29))],
        ),
        (
            calendar(START, "DURATION:P2D", "RDATE;VALUE=DATE:20270105,20270110", "RDATE:20270120", "EXDATE:20270110"),
            [
                Event(begin=date(2026, 12, 25), days=2, skipped=(date(2027, 1, 10),)),
                Event(begin=date(2027, 1, 5), days=2),
                Event(begin=date(2027, 1, 20), days=2),
            ],
        ),
        (
            calendar("UID:a", START, "RRULE:FREQ=YEARLY", *AND, "UID:b", START, *AND, "UID:a", "RECURRENCE-ID;VALUE=DATE:20271225",
                     "DTSTART;VALUE=DATE:20271227", *AND, "UID:a", "RECURRENCE-ID:20281225", "STATUS:CANCELLED"),
            [structs.replace(YEARLY, skipped=(date(2027, 12, 25), date(2028, 12, 25))), CHRISTMAS, Event(begin=date(2027, 12, 27))],
        ),
        (calendar("DTSTART;TZID=W. Europe Standard Time:20261225T000000", "DTEND;TZID=W. Europe Standard Time:20261227T000000",
                  "X-MICROSOFT-CDO-ALLDAYEVENT:TRUE"), [Event(begin=date(2026, 12, 25), days=2)]),
    ],
)  # fmt: skip
def test_whole_days_are_read_in_every_form_that_calendars_write(text, expected):
    assert parse_calendar(text.encode()) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the file ends before END:VCALENDAR"),
        ("<html>", "line 1: is no line of iCalendar"),
        ("A:b", "line 1: found A where BEGIN:VCALENDAR is accepted"),
        (calendar(START)[:-15], "line 5: the file ends before END:VCALENDAR"),
        (calendar(), "line 3: an event without DTSTART; accepted are whole days"),
        (calendar("DTSTART:20261225T090000Z"), "line 4: found DTSTART '20261225T090000Z'; accepted are whole days"),
        (calendar("DTSTART;VALUE=DATE:20261325"), "line 4: found DTSTART '20261325'"),
        (calendar(START, "DTEND;VALUE=DATE:20261224"), "line 5: the event lasts -1 days"),
        (calendar(START, "DURATION:PT24H"), "line 5: found DURATION:PT24H"),
        (calendar(START, "RRULE:FREQ=SECONDLY"), "line 5: found RRULE:FREQ=SECONDLY; accepted is RRULE:FREQ=YEARLY"),
        (calendar(START, "RRULE:FREQ=YEARLY;BYDAY=1MO"), "line 5: found RRULE:FREQ=YEARLY;BYDAY=1MO"),
        (calendar(START, "RRULE:FREQ=YEARLY;BYMONTHDAY=26"), "line 5: found RRULE"),
        (calendar(START, "RRULE:FREQ=YEARLY;INTERVAL=2"), "line 5: found RRULE"),
        (calendar(START, "RRULE:FREQ=WEEKLY;FREQ=YEARLY"), "line 5: found RRULE:FREQ=WEEKLY;FREQ=YEARLY, where a part stands twice"),
        (calendar(START, "RRULE:FREQ=YEARLY;COUNT=501"), "line 5: found COUNT=501; accepted are 1 to 500"),
        (calendar(START, "RRULE:FREQ=YEARLY", "RRULE:FREQ=YEARLY"), "line 6: a second RRULE in one event"),
        (calendar(START, "RDATE;VALUE=PERIOD:20270101T000000Z/P1D"), "line 5: found RDATE"),
        (calendar(START, "RDATE:" + ",".join(["20270101"] * MAX_EVENTS)), "more than 1000 events"),
        (calendar(START, "RECURRENCE-ID;VALUE=DATE:20270101"), "line 5: found RECURRENCE-ID in an event without UID"),
        (calendar("UID:a", START, "RECURRENCE-ID;RANGE=THISANDFUTURE:20270101"), "line 6: found RECURRENCE-ID for this and later dates"),
        (calendar("UID:a", START, "RECURRENCE-ID:20270101T080000Z"), "line 6: found RECURRENCE-ID '20270101T080000Z'"),
        (calendar(START, "EXRULE:FREQ=YEARLY"), "line 5: found EXRULE"),
        (calendar(START, "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH"), "accepted is RRULE:FREQ=YEARLY on the day of DTSTART, or on its weekday"),
        (calendar(START, "RRULE:FREQ=YEARLY;BYMONTH=12;BYDAY=3FR"), "line 5: found RRULE"),  # it is the fourth one
        (calendar(START, "RRULE:FREQ=YEARLY;BYMONTH=12;BYDAY=FR"), "line 5: found RRULE"),  # each Friday
        (calendar(START, "RRULE:FREQ=YEARLY;BYDAY=4FR"), "line 5: found RRULE"),  # of the year
        (calendar(START, "RRULE:FREQ=YEARLY;BYMONTH=12;BYDAY=4FR,1MO"), "line 5: found RRULE"),
        (calendar(START, "RRULE:FREQ=YEARLY;BYMONTH=12;BYDAY=4FR;BYSETPOS=1"), "line 5: found RRULE"),
        (calendar(START, "RRULE:FREQ=MONTHLY;BYMONTH=12;BYDAY=4FR"), "line 5: found RRULE"),
        (calendar(MIDNIGHT), "line 4: found DTSTART '20261225T000000'"),
        (calendar(MIDNIGHT, "DTEND;TZID=Europe/Berlin:20261225T090000"), "line 5: found DTEND '20261225T090000'"),
        (calendar(MIDNIGHT, "DTEND:20261225T000000"), "line 5: the event lasts 0 days"),
        (calendar(MIDNIGHT, "DTEND:20261226T000000", "RRULE:FREQ=YEARLY"), "line 4: found DTSTART '20261225T000000'"),
        (calendar("DTSTART:20261225T000000Z", "DTEND:20261226T000000Z"), "line 4: found DTSTART '20261225T000000Z'"),
        (calendar(START, "EXDATE:20271225T000000"), "line 5: found EXDATE"),
        (calendar(START).replace("VEVENT", "VTODO"), "line 3: found BEGIN:VTODO in VCALENDAR"),
        (calendar(START).replace("END:VEVENT", "END:VTODO"), "line 5: END:VTODO ends VEVENT"),
        (calendar(START).replace("VERSION:2.0", "METHOD:CANCEL"), "line 2: METHOD:CANCEL"),
        (calendar(*[START, "END:VEVENT", "BEGIN:VEVENT"] * MAX_EVENTS, START), "more than 1000 events"),
        ("x" * (MAX_BYTES + 1), "line 1: the file has 262145 bytes; accepted are 262144"),
    ],
)  # fmt: skip
def test_all_else_is_refused_with_its_line_and_what_is_accepted(text, said):
    with pytest.raises(ValueError, match=r"^line ") as caught:
        parse_calendar(text.encode())

    assert said in str(caught.value)


def test_a_line_may_be_folded_within_a_letter():
    folded = calendar(START, "SUMMARY:Fête").encode().replace(b"\xc3\xaa", b"\xc3\r\n \xaa")

    assert parse_calendar(folded) == (CHRISTMAS,)


def test_what_is_not_utf_8_is_refused_with_its_line():
    with pytest.raises(ValueError, match=r"^line 2: found what is not UTF-8"):
        parse_calendar(b"BEGIN:VCALENDAR\n\xff")
