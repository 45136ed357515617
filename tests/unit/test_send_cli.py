"""Lines as messages, and the resume file that tells which of them are left."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from publisher.errors import PublishSettingsError
from publisher.plain_message import PlainMessage
from publisher.service_bus.line_messages import (
    LineMessages,
    LineOptions,
    Resume,
    check_same_input,
    done_lines,
    read_resume,
)
from publisher.service_bus.send_report import Indices, Outgoing, Refused, SendReport
from tidemark.__main__ import app

JSONL = LineOptions("jsonl", session_field="customer", id_field="id")


def lines_of(text, options=LineOptions(), **more):  # noqa: B008 - frozen
    return LineMessages(BytesIO(text), options, id_prefix="run", **more)


def outgoing(index):
    return Outgoing(index, f"id-{index}", None, None, None, b"", 1, 1)


def report_of(sent=(), unknown=(), refused=()):
    indices = Indices()
    for index in sent:
        indices.add(index)
    return SendReport(
        indices,
        unknown=tuple(outgoing(index) for index in unknown),
        refused=tuple(Refused(index, None, None, None, "", None) for index in refused),
    )


def test_a_line_becomes_a_message_with_an_id_by_its_number():
    messages = list(lines_of(b"one\r\n\n  \ntwo"))

    assert messages == [PlainMessage(b"one", "run-0000000001"), PlainMessage(b"two", "run-0000000004")]


def test_a_json_line_gives_session_and_message_id():
    (message,) = lines_of(b'{"id": 7, "customer": "c"}\n', JSONL)

    assert message == PlainMessage(b'{"id": 7, "customer": "c"}', "7", "c", "application/json")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not json", "line 2 is no JSON"),
        (b"[1]", r"line 2 has None as customer \(--session-field\), accepted: a text or a whole number"),
        (b'{"customer": "", "id": 1}', "line 2 has '' as customer"),
        (b'{"customer": "c", "id": 1.5}', r"line 2 has 1.5 as id \(--id-field\)"),
        (b'{"customer": true, "id": 1}', "line 2 has True as customer"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line, words):
    with pytest.raises(PublishSettingsError, match=words):
        list(lines_of(b'{"id": 7, "customer": "c"}\n' + line, JSONL))


def test_fields_need_json_lines():
    with pytest.raises(PublishSettingsError, match="need --format jsonl"):
        LineOptions(session_field="customer")


@given(
    st.lists(st.sampled_from([b"", b"x"]), max_size=30).flatmap(
        lambda lines: st.tuples(
            st.just(lines),
            st.lists(st.sampled_from("sukr"), min_size=len(lines), max_size=len(lines)),
            st.lists(st.sampled_from("suk"), min_size=len(lines), max_size=len(lines)),
            st.booleans(),
        )
    )
)
def test_two_runs_account_for_every_line(drawn):
    """s sent, u unsent, k unknown, r refused: what a run does to its n-th message."""
    lines, first, second, resend = drawn
    text = b"".join(line + b"\n" for line in lines)
    wanted = [number for number, line in enumerate(lines, 1) if line]

    one = lines_of(text)
    fates = dict(zip(range(len(list(one))), first, strict=False))
    left = one.resume_after(
        report_of(*[[i for i, f in fates.items() if f == fate] for fate in "skr"]), "queue q"
    )
    by_line = {wanted[index]: fate for index, fate in fates.items()}
    assert [line for line, fate in by_line.items() if fate == "s"] == list(done_lines(left))
    assert [line for line, fate in by_line.items() if fate == "k"] == left.unknown
    assert [line for line, fate in by_line.items() if fate == "r"] == left.refused

    left = read_resume(left.encode(), "x.json")
    two = lines_of(text, resume=left, resend_unknown=resend)
    again = [line for line, fate in by_line.items() if fate == "u" or (fate == "k" and resend)]
    assert [message.message_id for message in two] == [f"run-{line:010d}" for line in again]
    fates = dict(zip(range(len(again)), second, strict=False))
    end = two.resume_after(
        report_of(*[[i for i, f in fates.items() if f == fate] for fate in "skr"]), "queue q"
    )
    for index, line in enumerate(again):
        if fates[index] == "s":
            by_line[line] = "s"
        elif fates[index] == "k":
            by_line[line] = "k"
    assert [line for line, fate in by_line.items() if fate == "s"] == list(done_lines(end))
    assert [line for line, fate in by_line.items() if fate == "k"] == end.unknown
    assert [line for line, fate in by_line.items() if fate == "r"] == end.refused


def test_another_input_than_was_sent_before_is_refused():
    lines = lines_of(b"a\nb\nc\n")
    iterator = iter(lines)
    next(iterator), next(iterator)
    left = lines.resume_after(report_of([0]), "queue q")

    check_same_input(BytesIO(b"a\nb\nother\n"), left, "file")
    for other in (b"a\nB\nc\n", b"a\n"):
        with pytest.raises(PublishSettingsError, match="its first 2 lines differ"):
            check_same_input(BytesIO(other), left, "file")


@pytest.mark.parametrize("text", [b"", b"{}", b'{"version": 2}', b"[]"])
def test_what_is_no_resume_file_is_refused(text):
    with pytest.raises(PublishSettingsError, match=r"x\.json is no resume file of tidemark send"):
        read_resume(text, "x.json")


def test_a_resume_file_of_another_version_or_with_overlapping_ranges_is_refused():
    newer = Resume("queue q", LineOptions(), "p", [], [], [], 0, "", version=2).encode()
    with pytest.raises(PublishSettingsError, match="has version 2, accepted: 1"):
        read_resume(newer, "x.json")
    with pytest.raises(PublishSettingsError, match="done ranges"):
        done_lines(Resume("queue q", LineOptions(), "p", [(1, 5), (3, 9)], [], [], 9, ""))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--queue", "q", "--topic", "t"], "exactly one of them"),
        ([], "exactly one of them"),
        (["--queue", "q", "--format", "csv"], "--format is 'csv', accepted: lines, jsonl"),
        (["--queue", "q", "--schedule-at", "soon"], "--schedule-at is 'soon'"),
        (["--queue", "q", "--connection", "Nowhere"], "no Service Bus connection 'Nowhere'"),
    ],
)
def test_wrong_options_end_with_status_2_and_their_name(tmp_path, monkeypatch, options, words):
    monkeypatch.setenv(
        "ServiceBusConnection", "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b"
    )
    file = tmp_path / "lines.txt"
    file.write_text("a\n")
    result = CliRunner().invoke(app, ["send", "-f", str(file), "--root", str(tmp_path), *options])

    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


class TestIndices:
    @given(st.lists(st.integers(0, 30), unique=True))
    def test_a_set_of_indices_is_what_was_added(self, added):
        indices = Indices()
        for index in added:
            indices.add(index)

        assert list(indices) == sorted(added)
        assert len(indices) == len(added)
        assert [index for index in range(-1, 32) if index in indices] == sorted(added)
        assert Indices.of(indices.ranges()) == indices == indices.copy()
        assert all(
            one.stop < two.start for one, two in zip(indices.ranges(), indices.ranges()[1:], strict=False)
        )

    def test_an_index_is_added_once(self):
        indices = Indices.of([range(3, 6)])
        with pytest.raises(ValueError, match="index 4 is there already"):
            indices.add(4)
