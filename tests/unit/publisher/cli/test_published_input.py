"""The input of `tidemark publish`: the same one is continued where it was, another one is refused."""

import gzip
import lzma
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.publisher.cli.csv_rows import read_as_json_lines
from tidemark.publisher.cli.input_lines import (
    PublishedInput,
    read_bookmark,
    read_csv,
    read_lines,
    write_bookmark,
)
from tidemark.publisher.cli.text.event_fields import EventFields
from tidemark.publisher.cli.text.lines import LARGEST_MESSAGE, Bookmark, BoundedLines, read_bounded
from tidemark.publisher.errors import InvalidProducerStateError, PublishSettingsError


class Pipe(BytesIO):
    def seekable(self):
        return False

    def seek(self, *_):
        raise OSError("a pipe")


def bookmark(line, digest=None):
    return Bookmark(line.end, line.number, line.count, 2, None, digest or line.digest)


BEGINNING = Bookmark(0, 0, 0, 2, None)


def opened(text, start=BEGINNING, others=(), kind=BytesIO):
    source = PublishedInput(kind(text), "events.jsonl", keeps_digest=True)
    source.begin(start, others)
    return source


def all_lines(text):
    return list(read_lines(opened(text), BEGINNING))


TEXTS = st.lists(st.sampled_from([b"", b"a", b"bb", b"\r", b"c\r"]), max_size=8).map(b"\n".join)


@given(TEXTS, TEXTS, st.sampled_from([BytesIO, Pipe]), st.data())
def test_an_input_that_is_the_same_or_has_grown_is_continued_at_the_earliest_bookmark(text, more, kind, data):
    lines = all_lines(text)
    known = data.draw(st.lists(st.sampled_from([BEGINNING, *map(bookmark, lines)]), min_size=1, max_size=3))
    start = min(known, key=lambda place: place.offset)
    grown = text + (b"\n" if lines else b"") + more

    for again in (text, grown):
        input_lines = list(read_lines(opened(again, start, known, kind), start))
        assert input_lines == [line for line in all_lines(again) if line.number > start.line]


@given(TEXTS, TEXTS, st.sampled_from([BytesIO, Pipe]), st.data())
def test_an_input_with_another_beginning_is_refused(text, other, kind, data):
    lines = all_lines(text)
    if not lines:
        return
    known = data.draw(st.lists(st.sampled_from([bookmark(line) for line in lines]), min_size=1, max_size=3))
    start = min(known, key=lambda place: place.offset)
    end = max(place.offset for place in known)
    if other[:end] == text[:end]:
        return

    with pytest.raises(InvalidProducerStateError, match=r"events\.jsonl is not the input of the saved state"):
        list(read_lines(opened(other, start, known, kind), start))


@pytest.mark.parametrize("kind", [BytesIO, Pipe])
def test_nothing_is_given_of_another_input_and_the_way_out_is_told(kind):
    last = all_lines(b"one\ntwo\n")[-1]
    with pytest.raises(InvalidProducerStateError) as refused:
        opened(b"eno\ntwo\nthree\n", bookmark(last), kind=kind)

    assert str(refused.value) == (
        "events.jsonl is not the input of the saved state, of which 2 lines were published, up to line 2; its "
        "first 8 bytes differ, or it is shorter. Publish that input again, or this one with another --state file, which publishes all "
        "lines of it"
    )


@pytest.mark.parametrize("kind", [BytesIO, Pipe])
def test_a_last_line_that_has_grown_since_it_was_published_is_refused(kind):
    last = bookmark(all_lines(b"one\ntw")[-1])
    with pytest.raises(InvalidProducerStateError, match="the last of them has grown since"):
        list(read_lines(opened(b"one\ntwo\n", last, kind=kind), last))

    input_lines = list(read_lines(opened(b"one\ntw\r\nthree\n", last, kind=kind), last))
    assert [(line.body, line.number, line.count) for line in input_lines] == [(b"three", 3, 3)]


@pytest.mark.parametrize("kind", [BytesIO, Pipe])
def test_a_bookmark_of_an_earlier_version_is_taken_where_a_line_ends(kind):
    old = read_bookmark('{"offset":4,"line":1,"count":1,"partitions":2,"key":null}', 2, None)
    assert old.digest is None

    (input_line,) = read_lines(opened(b"abc\ntwo\n", old, kind=kind), old)
    assert input_line == all_lines(b"abc\ntwo\n")[1]  # from now on it is known which input it is
    assert read_bookmark(write_bookmark(bookmark(input_line)), 2, None).digest == input_line.digest
    for other in (b"abcde\n", b"abc", b""):
        with pytest.raises(InvalidProducerStateError, match="is not the input"):
            list(read_lines(opened(other, old, kind=kind), old))


def test_rows_of_a_csv_are_continued_too():
    text = b'a,b\n1,"x\ny"\n\n2,z\n'
    source = opened(text)
    rows = list(read_csv(source, BEGINNING))
    assert [row.body for row in rows] == [b'{"a":"1","b":"x\\ny"}', b'{"a":"2","b":"z"}']

    start = bookmark(rows[0])
    assert list(read_csv(opened(text, start), start)) == rows[1:]
    with pytest.raises(InvalidProducerStateError, match="first 12 bytes differ"):
        opened(text.replace(b"1", b"7"), start)


def test_without_a_state_nothing_is_hashed():
    source = PublishedInput(BytesIO(b"a\n"), "x", keeps_digest=False)
    source.begin(BEGINNING)

    assert [line.digest for line in read_lines(source, BEGINNING)] == [None]


class Growing(BytesIO):
    """Somebody goes on writing when the end was read."""

    def readline(self, *most):
        line = super().readline(*most)
        if line and not line.endswith(b"\n"):
            at = self.tell()
            self.write(b"tial\n")
            self.seek(at)
        return line


@pytest.mark.parametrize("keeps_digest", [True, False])
def test_a_line_that_is_read_while_it_is_written_is_told_as_what_it_is(keeps_digest):
    """Whatever state there is: the input is the right one, and not complete."""
    source = PublishedInput(Growing(b"whole\npar"), "events.jsonl", keeps_digest=keeps_digest)
    source.begin(BEGINNING)
    lines = read_lines(source, BEGINNING)

    assert [next(lines).body, next(lines).body] == [b"whole", b"par"]
    with pytest.raises(
        PublishSettingsError, match=r"events\.jsonl: its last line was read before it was written"
    ):
        next(lines)


class Endless(BytesIO):
    """Zeros without a line end, as many as are asked for; a hundred megabytes of them are too many."""

    given = 0

    def readline(self, most=-1, /):
        assert 0 < most < 110_000_000, "without a bound"
        self.given += most
        assert self.given < 110_000_000
        return b"0" * most


def test_a_line_without_an_end_is_refused_by_its_number_before_more_than_an_event_is_read():
    """P3: 400 MB were read whole before they were too large."""
    source = PublishedInput(Endless(), "events.jsonl", keeps_digest=True)
    source.begin(Bookmark(0, 0, 0, 2, None))

    with pytest.raises(
        PublishSettingsError, match=r"events\.jsonl, line 1: it is too large: more than 20,971,520"
    ):
        next(read_lines(source, BEGINNING))
    with pytest.raises(
        PublishSettingsError, match=r"rows\.csv, line 1: it is too large: more than 104,857,600"
    ):
        next(read_as_json_lines(BoundedLines(Endless(), "rows.csv", LARGEST_MESSAGE), "rows.csv"))
    with pytest.raises(PublishSettingsError, match=r"x, line 8: it is too large: more than 3 bytes"):
        list(read_bounded(BytesIO(b"123\r\n1234\n"), "x", 3, line=6))


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        (b'\xef\xbb\xbf{"a":1}\n', [b'{"a":1}']),
        (b"\xef\xbb\xbf\xef\xbb\xbfa\nb\n", [b"a", b"b"]),
        (b'{"a":1}\n\xef\xbb\xbf{"a":2}\n', [b'{"a":1}', b'{"a":2}']),
        (b"a\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"]),
        (b"\xef\xbb\xbf\n", []),
        (b"\xfc\xff\n", [b"\xfc\xff"]),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_first_line_nor_of_json(text, bodies):
    lines = all_lines(text)
    assert [line.body for line in lines] == bodies
    for place, line in enumerate(lines):  # and the input is the same afterwards
        start = bookmark(line)
        assert list(read_lines(opened(text, start), start)) == lines[place + 1 :]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_a_compressed_input_is_refused_with_how_to_unpack_it(compress):
    with pytest.raises(
        PublishSettingsError, match=r"is compressed \((gzip|xz)\) .* with: (gunzip|unxz) --keep"
    ):
        all_lines(compress(b"a\n"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be"])
def test_lines_in_another_unicode_are_refused_with_how_to_convert_them(encoding):
    text = ("\ufeff" if encoding == "utf-16-be" else "") + '{"a": 1}\n'
    with pytest.raises(
        PublishSettingsError, match=r"by its first bytes, accepted: UTF-8; convert it.*iconv -f"
    ):
        all_lines(text.encode(encoding))


def test_a_bookmark_is_of_the_options_and_the_partitions_that_it_was_written_with():
    told = {"--partition-key": "k", "--property": "a=1"}
    text = write_bookmark(Bookmark(4, 1, 1, 2, "k", "d", given=told))

    assert read_bookmark(text, 4, "k", told).partitions == 2  # partitions that were added change nothing
    for partitions, key, now, words in (
        (1, "k", told, "of a hub with 2 partitions, this one has 1"),
        (2, None, told, "has partition key k, now it is None"),
        (
            2,
            "k",
            {**told, "--property": "a=2"},
            "--property was a=1, now it is a=2. Give the options of before, or",
        ),
        (2, "k", {"--partition-key": "k"}, "--property was a=1, now it is not given"),
    ):
        with pytest.raises(InvalidProducerStateError) as refused:
            read_bookmark(text, partitions, key, now)
        assert words in str(refused.value)
        assert "another --state file: all of the input is published, also what was" in str(refused.value)
    with pytest.raises(InvalidProducerStateError, match="go on with the version that wrote it"):
        read_bookmark(text.replace('"floored"', '"of a later version"'), 2, "k", told)
    assert (
        read_bookmark('{"offset":4,"line":1,"count":1,"partitions":2,"key":"k"}', 2, "k", told).given is None
    )


FIELDS = EventFields.of_options(["source=file"], ["plane", "delay=minutes"], "id", None)


@pytest.mark.parametrize(
    ("body", "properties", "message_id"),
    [
        (b'{"id":7,"plane":"N1","minutes":1.5}', {"source": "file", "plane": "N1", "delay": 1.5}, "7"),
        (b'{"id":"x","plane":true,"minutes":null}', {"source": "file", "plane": True}, "x"),
        (b'{"id":"x"}', {"source": "file"}, "x"),
    ],
)
def test_fields_of_a_line_are_application_properties_and_its_message_id(body, properties, message_id):
    assert FIELDS.read(body, 3) == (properties, message_id)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no json", "line 3 is not JSON"),
        (b'{"id":1,"plane":["N1"]}', "line 3 has [\"N1\"] in 'plane', an application property; accepted"),
        (b'{"id":1,"plane":%d}' % 2**63, "up to 64 bits"),
        (b'{"plane":"N1"}', 'line 3 has no text or number in \'id\', the message id: {"plane":"N1"}'),
    ],
)
def test_a_field_that_is_no_single_value_is_refused_by_its_line(body, words):
    with pytest.raises(PublishSettingsError) as refused:
        FIELDS.read(body, 3)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("properties", "fields", "words"),
    [
        (["a"], [], "--property is 'a', accepted: NAME=VALUE"),
        (["=a"], [], "--property is '=a'"),
        (["a=1", "a=2"], [], "each name once"),
        (["a=1"], ["a"], "--property and --property-field both give a"),
    ],
)
def test_properties_that_cannot_be_read_are_refused(properties, fields, words):
    with pytest.raises(PublishSettingsError) as refused:
        EventFields.of_options(properties, fields, None, None)
    assert words in str(refused.value)
