"""What is sent to a web service, and what its answers mean."""

import pytest

from consumer.model import Event, Operation, Outcome, Stream, Write
from consumer.sinks.http.requests import RequestMapper, UrlTemplate, body_of, idempotency_key, result_of
from consumer.sinks.types import SinkContext, find_sink_type, read_options
from tidemark.foundation.errors import SettingsError

STREAM = Stream("ns", "flights", "$Default")
URL = "https://api.example.com/{$.a.b}/x?n={@sequence_number}"


def prepared(document, url=URL, **options):
    event = Event("0", 7, "", 0.0, b"", partition_key="k")
    return RequestMapper(UrlTemplate(url), "$.a.b").prepare(Write(event, document, **options))


@pytest.mark.parametrize(
    ("status", "outcome", "wait"),
    [
        (200, Outcome.WRITTEN, None),
        (204, Outcome.WRITTEN, None),
        (302, Outcome.RETRY, None),
        (308, Outcome.RETRY, None),
        (400, Outcome.REJECT, None),
        (401, Outcome.RETRY, 3.0),
        (403, Outcome.RETRY, 3.0),
        (404, Outcome.REJECT, None),
        (407, Outcome.RETRY, 3.0),
        (408, Outcome.RETRY, 3.0),
        (409, Outcome.REJECT, None),
        (413, Outcome.REJECT, None),
        (422, Outcome.REJECT, None),
        (425, Outcome.RETRY, 3.0),
        (429, Outcome.RETRY, 3.0),
        (500, Outcome.RETRY, 3.0),
        (503, Outcome.RETRY, 3.0),
        (599, Outcome.RETRY, 3.0),
    ],
)
def test_each_status_has_one_meaning(status, outcome, wait):
    result = result_of(status, {"Location": "https://elsewhere.example/?token=x"}, b"why not", 3.0)

    assert (result.outcome, result.status, result.retry_after) == (outcome, status, wait)
    assert ("why not" in result.reason) is (status >= 400)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("LGA", "https://api.example.com/LGA/x?n=7"),
        (5, "https://api.example.com/5/x?n=7"),
        ("a/../../admin?x=1#y", "https://api.example.com/a%2F..%2F..%2Fadmin%3Fx%3D1%23y/x?n=7"),
        ("Köln", "https://api.example.com/K%C3%B6ln/x?n=7"),
        ("..", None),
        ("", None),
        (None, None),
        (True, None),
        (["a"], None),
    ],
)
def test_a_value_of_a_document_fills_one_part_of_the_url_and_no_other(value, expected):
    record = prepared({"a": {"b": value}})

    if expected is None:
        assert record.rejection.reason == "url"
    else:
        assert record.partition_key == expected


@pytest.mark.parametrize(
    "url",
    [
        "https://{$.host}/x",
        "https://api.example.com/{id}",
        "https://api.example.com/{$.a",
        "https://api.example.com/}",
    ],
)
def test_a_url_whose_host_is_not_fixed_or_whose_values_are_unknown_is_refused(url):
    with pytest.raises(SettingsError):
        UrlTemplate(url)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("http://api.example.com/x", {}),
        ("https://169.254.169.254/metadata", {}),
        ("https://127.0.0.1/x", {}),
        ("https://user:secret@api.example.com/x", {}),
    ],
)
def test_an_address_that_is_not_called_is_told_when_the_sink_is_built(url, settings):
    kind = find_sink_type("http")
    with pytest.raises(SettingsError, match=r"^url"):
        kind.build(read_options(kind, {"url": url}, "sinks.a"), SinkContext(settings, "flights", STREAM, "a"))


def test_a_secret_header_whose_setting_is_missing_is_told_by_both_names():
    kind = find_sink_type("http")
    options = read_options(
        kind, {"url": "https://x.example", "secret_headers": {"Authorization": "TOKEN"}}, "a"
    )
    with pytest.raises(SettingsError, match="the setting TOKEN of the header Authorization is not set"):
        kind.build(options, SinkContext({}, "flights", STREAM, "a"))


@pytest.mark.parametrize("written", ["Bearer eyJhbGciOi.x", "c2VjcmV0LXNlY3JldA==", ""])
def test_a_secret_that_stands_in_the_file_is_told_and_not_shown(written):
    kind = find_sink_type("http")
    options = read_options(
        kind, {"url": "https://x.example", "secret_headers": {"Authorization": written}}, "a"
    )
    with pytest.raises(SettingsError, match="the header Authorization has no name of an app setting") as told:
        kind.build(options, SinkContext({}, "flights", STREAM, "a"))
    assert not written or written not in str(told.value)


def test_a_delete_is_not_sent_as_something_else():
    record = prepared({"a": {"b": "x"}}, operation=Operation.DELETE)

    assert record.rejection.reason == "operation"


def test_a_list_has_the_documents_in_their_order_and_a_key_of_all_of_them():
    records = [prepared({"a": {"b": name}}, index=index) for index, name in enumerate("xy")]

    assert body_of(records, is_list=True) == b'[{"a":{"b":"x"}},{"a":{"b":"y"}}]'
    assert body_of(records[:1], is_list=False) == b'{"a":{"b":"x"}}'
    keys = [idempotency_key(STREAM, each) for each in (records, records[:1], records[1:], records[::-1])]
    assert len(set(keys)) == 4
    assert keys[0] == idempotency_key(STREAM, records)
