"""The queries printed beside the plots."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.sampling_report.kql import SCHEMAS, Question, literal, moment, queries, timespan

ARTICLE = Question(
    "EventXReceived", "EventXReceived_Count", timedelta(days=1), since=datetime(2017, 5, 6, tzinfo=UTC)
)


def test_the_queries_are_those_of_the_article_with_the_names_filled_in():
    found = queries(ARTICLE, SCHEMAS["customEvents"])

    assert found["raw"] == (
        "customEvents\n"
        '| where name == "EventXReceived"\n'
        "| where timestamp >= datetime(2017-05-06T00:00:00.000000Z)\n"
        '| project Value = todouble(customMeasurements["EventXReceived_Count"]), timestamp\n'
        "| summarize Raw = sum(Value) by bin(timestamp, 1d)\n"
        "| render timechart"
    )
    assert (
        "| summarize SamplingRate = 100.0 / avg(itemCount) by bin(timestamp, 1d)\n| render areachart"
        in found["rate"]
    )
    assert 'todouble(customMeasurements["EventXReceived_Count"]) * itemCount' in found["corrected"]


def test_a_workspace_has_other_names():
    text = "\n".join(queries(ARTICLE, SCHEMAS["AppEvents"]).values())

    assert text.startswith('AppEvents\n| where Name == "EventXReceived"\n| where TimeGenerated >= ')
    assert 'todouble(Measurements["EventXReceived_Count"]) * ItemCount' in text
    assert "avg(ItemCount) by bin(TimeGenerated, 1d)" in text
    assert "itemCount" not in text
    assert "customEvents" not in text


def test_without_a_measurement_events_are_counted():
    found = queries(Question("X", None, timedelta(hours=6)), SCHEMAS["customEvents"])

    assert "summarize Raw = count() by bin(timestamp, 6h)" in found["raw"]
    assert "summarize Corrected = sum(itemCount) by bin(timestamp, 6h)" in found["corrected"]
    assert "project" not in "".join(found.values())


def test_a_name_cannot_end_its_string_and_add_a_query():
    found = queries(
        Question('X" or true\n| take 1 //\\', 'a"]) * 0 //', timedelta(days=1)), SCHEMAS["customEvents"]
    )

    assert found["raw"].count("\n") == 4
    assert r'name == "X\" or true\n| take 1 //\\"' in found["raw"]
    assert r'customMeasurements["a\"]) * 0 //"]' in found["raw"]


@given(st.text())
def test_every_name_is_read_back_from_its_literal(text):
    quoted = literal(text)

    assert re.fullmatch(r'"(?:[^"\\\n\r]|\\.)*"', quoted)
    assert all(character.isprintable() for character in quoted)
    units = re.sub(
        r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), quoted[1:-1].replace("\\\\", "\0")
    )
    for escape, character in (('\\"', '"'), ("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        units = units.replace(escape, character)
    if "\0" not in text:
        joined = (
            units.replace("\0", "\\")
            .encode("utf-16-le", "surrogatepass")
            .decode("utf-16-le", "surrogatepass")
        )
        assert joined == text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


@pytest.mark.parametrize(
    ("length", "text"),
    [({"days": 7}, "7d"), ({"hours": 36}, "36h"), ({"minutes": 90}, "90m"), ({"seconds": 45}, "45s")],
)
def test_a_length_is_told_in_its_largest_whole_unit(length, text):
    assert timespan(timedelta(**length)) == text


def test_fractions_of_a_second_are_no_bin():
    with pytest.raises(ValueError, match="whole number of seconds"):
        timespan(timedelta(milliseconds=1500))


def test_times_are_told_in_utc():
    assert (
        moment(datetime.fromisoformat("2026-11-21T09:30:00.250+02:00"))
        == "datetime(2026-11-21T07:30:00.250000Z)"
    )
