"""Lines as messages, and the resume file that tells which of them are left."""

import errno
import hashlib
import os
import resource
from io import BytesIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.disk import record_disk_calls
from tidemark.__main__ import command_line
from tidemark.publisher.cli.resume_file import (
    Answered,
    Batch,
    LineOptions,
    LineOutcomes,
    NeverSent,
    Resume,
    encode,
    ranges_of,
    read_resume_file,
)
from tidemark.publisher.cli.send_journal import SendJournal
from tidemark.publisher.cli.sending_run import LineMessages, SendingRun
from tidemark.publisher.errors import PublishError, PublishSettingsError
from tidemark.publisher.service_bus.core.send_report import Indices, Outgoing, PlainMessage
from tidemark.publisher.service_bus.core.send_steps import Accepted

JSONL = LineOptions("jsonl", session_field="customer", id_field="id")
NOTHING_READ = hashlib.sha256().hexdigest()


TOLD = {"namespace": "a.example", "--session-id": "s1"}


def begun(options=LineOptions(), entity="queue q", given=None, created_at="monday"):
    given = given or TOLD
    return Resume(entity, options, "run", [], [], [], 0, NOTHING_READ, given=given, created_at=created_at)


def lines_of(text, options=LineOptions(), before=None, **more):
    return LineMessages(BytesIO(text), before or begun(options), name="file", **more)


def outgoing(index):
    return Outgoing(index, f"id-{index}", None, None, None, b"", 1, 1)


def test_a_line_becomes_a_message_with_an_id_by_its_number():
    messages = list(lines_of(b"one\r\n\n  \ntwo"))

    assert messages == [PlainMessage(b"one", "run-0000000001"), PlainMessage(b"two", "run-0000000004")]


def test_a_byte_order_mark_is_no_part_of_a_message():
    (message,) = lines_of(b'\xef\xbb\xbf{"id": 7, "customer": "c"}\n', JSONL)

    assert message.body == b'{"id": 7, "customer": "c"}'


def test_a_json_line_gives_session_and_message_id():
    (message,) = lines_of(b'{"id": 7, "customer": "c"}\n', JSONL)

    assert message == PlainMessage(b'{"id": 7, "customer": "c"}', "7", "c", "application/json")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not json", "line 2 is not JSON"),
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
    st.lists(st.sampled_from([b"", b"x"]), max_size=30),
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from("sukr-")), max_size=20),
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from("sukr-")), max_size=20),
    st.booleans(),
    st.data(),
)
def test_two_runs_account_for_every_line(given_lines, first, second, resend, data):
    """What a run does to its batches: s sent, u not sent, k unknown, r refused, - killed before the answer."""
    text = b"".join(line + b"\n" for line in given_lines)
    wanted = [number for number, line in enumerate(given_lines, 1) if line]
    fates = dict.fromkeys(wanted, "u")

    found, file = begun(), b""
    for run, plan in enumerate((first, second)):
        lines = lines_of(text, before=found, resend_unknown=resend)
        messages = list(lines)
        again = [line for line in wanted if fates[line] == "u" or (fates[line] == "k" and resend)]
        assert [message.message_id for message in messages] == [f"run-{line:010d}" for line in again], run
        file = encode(found) + played(plan, lines, messages, again, fates)
        torn = data.draw(st.integers(0, 40)) if file.endswith(b"\n") else 0
        ledger = read_resume_file(file + b'{"event":"answered","fate":"sent"}'[:torn], "x.json")

        for letter, said in (("s", set(ledger.done)), ("k", ledger.unknown), ("r", ledger.refused)):
            assert said == {line for line, fate in fates.items() if fate == letter}
        found = ledger.summary()
    assert read_resume_file(encode(found), "x.json").summary() == found


def played(plan, lines, messages, numbers, fates):
    """The file of a run that sends its messages in batches of these sizes; `fates` is what became of each line."""
    written, at = b"", 0
    for size, fate in plan:
        indices = range(at, min(at + size, len(messages)))
        if not indices:
            break
        at = indices.stop
        batch = [numbers[index] for index in indices]
        if fate == "r":
            written += encode(NeverSent(batch))
        else:
            written += encode(lines.batch([outgoing(index) for index in indices]))
        for line in batch:
            if fate == "s" or fates[line] == "u":
                fates[line] = {"-": "k"}.get(fate, fate)
        if fate in "suk":
            written += encode(Answered({"s": "sent", "u": "not sent", "k": "unknown"}[fate]))
        if fate == "-":
            break  # it was killed
    return written


def test_lines_are_told_apart_after_a_run_that_sent_nothing_but_refused_a_line():
    """Else the last line would be sent again by the next run, in silence."""
    ledger = LineOutcomes(begun())
    ledger.enter(NeverSent([2]))
    lines = lines_of(b"a\ntoo large\nc\nd\n", before=ledger.summary())

    assert [message.body for message in lines] == [b"a", b"c", b"d"]
    assert lines.batch([outgoing(index) for index in range(3)]).lines == [(1, 1), (3, 4)]


@pytest.mark.parametrize("other", [b"a\nB\nc\n", b"a\n", b"", b"a\nb", b"{\n"])
def test_another_input_than_was_sent_before_is_refused_before_anything_of_it_is_sent(other):
    lines = lines_of(b"a\nb\nc\n")
    iterator = iter(lines)
    next(iterator), next(iterator)
    ledger = LineOutcomes(begun())
    ledger.enter(lines.batch([outgoing(0)]))
    ledger.enter(Answered("sent"))
    left = ledger.summary()

    assert [message.body for message in lines_of(b"a\nb\nother\n", before=left)] == [b"b", b"other"]
    with pytest.raises(PublishSettingsError, match=r"file is not the input .*: its first 2 lines differ"):
        next(iter(lines_of(other, before=left)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", r"x\.json is empty: .* start without --resume"),
        (b"{}\n", r"x\.json is no resume file of tidemark send"),
        (b'{"version": 2}', "is no resume file"),
        (b"[]", "is no resume file"),
        (b"\xff\n", "is no resume file"),
        (
            encode(Resume("q", LineOptions(), "p", [], [], [], 0, "", version=4)),
            "version 4, accepted: 1, 2, 3; go on",
        ),
        (b'{"version": 9, "done": "all but 7"}\n', "version 9, accepted: 1, 2, 3; go on"),
        (encode(Resume("q", LineOptions(), "p", [(1, 5), (3, 9)], [], [], 9, "")), "wrong ranges in 'done'"),
        (encode(begun()) + b"\0\0\n" + encode(Answered("sent")), "line 2: the file is damaged"),
        (
            encode(begun()) + 2 * (encode(Batch([(1, 2)], 2, "")) + encode(Answered("sent"))),
            "line 5: the file is damaged: index 1 is there already",
        ),
    ],
)
def test_what_is_no_resume_file_is_refused(text, words):
    with pytest.raises(PublishSettingsError, match=words):
        read_resume_file(text, "x.json")


def test_a_resume_file_of_an_earlier_version_is_read():
    """One document over several lines, written at the end of a run."""
    text = b"""{
  "entity": "queue q", "options": {"format": "lines", "session_field": null, "id_field": null},
  "id_prefix": "p", "done": [[1, 3]], "unknown": [4], "refused": [5], "read": 9, "digest": "ab", "version": 1
}"""
    ledger = read_resume_file(text, "x.json")

    assert (list(ledger.done), ledger.unknown, ledger.refused, ledger.read) == ([1, 2, 3], {4}, {5}, 9)
    assert (ledger.summary().version, ledger.summary().given) == (3, None)


def test_lines_are_written_as_ranges():
    lines = Indices()
    for line in (1, 2, 3, 5, 8, 7):
        lines.add(line)

    assert ranges_of(lines) == [(1, 3), (5, 5), (7, 8)]


class TestJournal:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "left.json"

    def test_what_was_about_to_be_sent_when_it_was_killed_is_unknown(self, path):
        with SendJournal.begin(path, begun()) as journal:
            journal.enter(Batch([(1, 3)], 3, "x"), durable=True)
            journal.enter(Answered("sent"))
            journal.enter(Batch([(4, 5)], 9, "y"), durable=True)
            ledger = read_resume_file(path.read_bytes(), "left")  # as another process finds it now

        assert (list(ledger.done), ledger.unknown, ledger.read, ledger.digest) == ([1, 2, 3], {4, 5}, 9, "y")

    def test_it_goes_on_after_a_line_that_a_kill_left_unfinished_and_may_move(self, path, tmp_path):
        with SendJournal.begin(path, begun()) as journal:
            journal.enter(Batch([(1, 3)], 3, "x"))
        with path.open("ab") as file:
            file.write(b'{"event":"answ')
        moved = tmp_path / "moved.json"

        with SendJournal.resume(path, begun(), moved) as journal:
            assert journal.outcomes.unknown == {1, 2, 3}
            journal.enter(Batch([(4, 4)], 4, "y"))
            journal.enter(Answered("sent"))

        assert not path.exists()
        assert list(read_resume_file(moved.read_bytes(), "moved").done) == [4]
        with (
            pytest.raises(PublishSettingsError, match="No such file"),
            SendJournal.resume(path, begun(), path),
        ):
            pass

    def test_one_process_has_it_at_a_time(self, path):
        with SendJournal.begin(path, begun()) as journal:
            journal.enter(Batch([(1, 1)], 1, "x"))
            for another in (SendJournal.begin(path, begun()), SendJournal.resume(path, begun(), path)):
                with pytest.raises(PublishSettingsError, match="in use by another tidemark send"), another:
                    pass

    def test_a_run_that_sent_something_is_not_begun_anew_and_one_that_did_not_is(self, path):
        path.touch()  # killed before it could write
        with SendJournal.begin(path, begun()):
            pass
        with SendJournal.begin(path, begun()) as journal:
            journal.enter(Batch([(1, 1)], 1, "x"))
        with (
            pytest.raises(
                PublishSettingsError, match=r"go on with --resume .*left\.json, or remove the file"
            ),
            SendJournal.begin(path, begun()),
        ):
            pass

    @pytest.mark.parametrize(
        ("wanted", "words"),
        [
            (
                begun(created_at="tuesday"),
                "the queue q was recreated: it was created at monday then and at tuesday now",
            ),
            (begun(entity="topic q"), "the entity was queue q, now it is topic q"),
            (
                begun(JSONL),
                "--format was lines, now it is jsonl; --session-field was not given, now it is customer",
            ),
            (
                begun(given={**TOLD, "namespace": "b.example"}),
                "the namespace was a.example, now it is b.example",
            ),
            (begun(given={"namespace": "a.example"}), "--session-id was s1, now it is not given"),
            (begun(given={**TOLD, "--schedule-at": "2030"}), "--schedule-at was not given, now it is 2030"),
            (
                begun(given={**TOLD, "--claim-check": "c of h"}),
                "--claim-check was not given, now it is c of h",
            ),
        ],
    )
    def test_that_of_a_run_that_was_told_otherwise_is_refused_and_left_alone(self, path, wanted, words):
        """P1: with another connection the rest went there, and each namespace lacked half."""
        with SendJournal.begin(path, begun()):
            pass
        before = path.read_bytes()
        with pytest.raises(PublishSettingsError) as refused, SendJournal.resume(path, wanted, path):
            pass
        assert words.replace("the namespace", "namespace") in str(refused.value)
        assert "or leave --resume out and name another --resume-file, which sends all lines" in str(
            refused.value
        )
        assert path.read_bytes() == before

    @pytest.mark.parametrize("entity", ["queue q", "queue Q"])
    def test_what_an_earlier_version_did_not_store_is_taken_as_given_now_and_compared_from_then_on(
        self, path, entity
    ):
        old = msgspec.to_builtins(begun())
        path.write_bytes(
            msgspec.json.encode(
                {**{k: old[k] for k in old if k not in {"given", "created_at"}}, "version": 2}
            )
            + b"\n"
        )
        with SendJournal.resume(path, begun(entity=entity), path) as journal:
            assert journal.unchecked
        with SendJournal.resume(path, begun(), path) as journal:
            assert not journal.unchecked
        with SendJournal.resume(path, begun(created_at=None), path):  # who may not ask decides nothing
            pass
        with (
            pytest.raises(PublishSettingsError, match="recreated"),
            SendJournal.resume(path, begun(created_at="tuesday"), path),
        ):
            pass
        other = begun(given={**TOLD, "namespace": "b.example"})
        with (
            pytest.raises(PublishSettingsError, match="namespace was"),
            SendJournal.resume(path, other, path),
        ):
            pass

    def test_a_file_that_is_there_is_never_replaced(self, path, tmp_path):
        with SendJournal.begin(path, begun()):
            pass
        other = tmp_path / "precious.txt"
        other.write_text("precious")
        with pytest.raises(PublishSettingsError, match="exists"), SendJournal.resume(path, begun(), other):
            pass
        with (
            pytest.raises(PublishSettingsError, match="is no resume file"),
            SendJournal.begin(other, begun()),
        ):
            pass
        for no_file in ("/dev/null", str(tmp_path)):
            with (
                pytest.raises(PublishSettingsError, match="name another path with --resume-file"),
                SendJournal.begin(type(path)(no_file), begun()),
            ):
                pass
        assert other.read_text() == "precious"

    def test_what_is_about_to_be_sent_is_on_the_disk_before_the_call_returns(self, path, monkeypatch):
        """P5: as the sender calls it. What came of a batch gets there with the next one."""
        lines = lines_of(b"a\nb\n")
        list(lines)
        with SendJournal.begin(path, begun()) as journal:
            synced, fsync = [], os.fsync

            def note(file):
                synced.append(path.read_bytes())
                fsync(file)

            monkeypatch.setattr(os, "fsync", note)
            run = SendingRun(journal, lines)
            run.sending([outgoing(0)])
            assert synced == [path.read_bytes()]
            assert read_resume_file(synced[0], "left").unknown == {1}
            run.answered(Accepted())
            assert len(synced) == 1

    def test_what_a_journal_begins_with_is_on_the_disk_before_it_has_its_name(
        self, path, tmp_path, monkeypatch
    ):
        """P5: otherwise a crash leaves an empty file, and the next run sends again what was sent."""
        happened, folder = record_disk_calls(monkeypatch), ("fsync", tmp_path.name)
        with SendJournal.begin(path, begun()) as journal:
            journal.enter(Batch([(1, 1)], 1, "x"), durable=True)
        first, happened[:] = happened.copy(), []
        with SendJournal.resume(path, begun(), tmp_path / "moved.json"):
            pass

        assert first == [("fsync", path.name), folder, ("fsync", path.name)]
        new = f"{path.name}.new"
        assert happened == [("fsync", new), ("rename", new), ("rename", path.name), folder, folder]

    def test_on_a_full_disk_nothing_more_is_sent_and_the_file_stays_readable(self, path):
        """A limit on the size of files stands for the disk: the kernel writes a part, and refuses the rest."""
        with SendJournal.begin(path, begun()) as journal:
            journal.enter(Batch([(1, 1)], 1, "x"), durable=True)
            journal.enter(Answered("sent"))
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
            try:
                for _ in range(2):
                    with pytest.raises(
                        PublishError, match=r"left\.json cannot be written \(File too large\)"
                    ) as refused:
                        journal.enter(Batch([(2, 2)], 2, "y"), durable=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert refused.value.__cause__.errno == errno.EFBIG
        ledger = read_resume_file(path.read_bytes(), "left")
        assert (list(ledger.done), ledger.unknown) == ([1], set())
        assert journal.outcomes.unknown == set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--queue", "q", "--topic", "t"], "exactly one of them"),
        ([], "exactly one of them"),
        (["--queue", "q", "--format", "csv"], "'csv' is not one of 'lines'"),
        (["--queue", "q", "--schedule-at", "soon"], "--schedule-at is 'soon'"),
        (
            ["--queue", "q", "--schedule-at", "0001-01-01T00:00+14:00"],
            "--schedule-at is '0001-01-01T00:00+14",
        ),
        (["--queue", "q", "--connection", "Nowhere"], "no Service Bus connection 'Nowhere'"),
    ],
)
def test_wrong_options_end_with_status_2_and_their_name(tmp_path, monkeypatch, options, words):
    monkeypatch.setenv(
        "ServiceBusConnection", "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b"
    )
    file = tmp_path / "lines.txt"
    file.write_text("a\n")
    result = CliRunner().invoke(command_line(), ["send", "-f", str(file), "--root", str(tmp_path), *options])

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
