"""The input of `tidemark publish`: the same one is continued where it was, another one is refused."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.cli.input_lines import (
    Bookmark,
    PublishedInput,
    read_bookmark,
    read_csv,
    read_lines,
    write_bookmark,
)
from publisher.errors import InvalidProducerStateError, PublishSettingsError


class Pipe(BytesIO):
    def seekable(self):
        return False

    def seek(self, *_):
        raise OSError("a pipe")


def bookmark(line, digest=None):
    return Bookmark(line.end, line.number, line.count, 2, None, digest or line.digest)


BEGINNING = Bookmark(0, 0, 0, 2, None)


def opened(text, start=BEGINNING, others=(), kind=BytesIO):
    source = PublishedInput(kind(text), "events.jsonl", remembers=True)
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
        found = list(read_lines(opened(again, start, known, kind), start))
        assert found == [line for line in all_lines(again) if line.number > start.line]


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

    with pytest.raises(
        InvalidProducerStateError, match=r"events\.jsonl is not the input that the saved state is of"
    ):
        list(read_lines(opened(other, start, known, kind), start))


@pytest.mark.parametrize("kind", [BytesIO, Pipe])
def test_nothing_is_given_of_another_input_and_the_way_out_is_told(kind):
    last = all_lines(b"one\ntwo\n")[-1]
    with pytest.raises(InvalidProducerStateError) as refused:
        opened(b"eno\ntwo\nthree\n", bookmark(last), kind=kind)

    assert str(refused.value) == (
        "events.jsonl is not the input that the saved state is of: 2 lines of that were published, up to line 2; the "
        "first 8 bytes are others, or there are fewer. Publish that input again, or this one with another --state file"
    )


@pytest.mark.parametrize("kind", [BytesIO, Pipe])
def test_a_last_line_that_has_grown_since_it_was_published_is_refused(kind):
    last = bookmark(all_lines(b"one\ntw")[-1])
    with pytest.raises(InvalidProducerStateError, match="the last of them has grown since"):
        list(read_lines(opened(b"one\ntwo\n", last, kind=kind), last))

    found = list(read_lines(opened(b"one\ntw\r\nthree\n", last, kind=kind), last))
    assert [(line.body, line.number, line.count) for line in found] == [(b"three", 3, 3)]


@pytest.mark.parametrize("kind", [BytesIO, Pipe])
def test_a_bookmark_of_an_earlier_version_is_taken_where_a_line_ends(kind):
    old = read_bookmark('{"offset":4,"line":1,"count":1,"partitions":2,"key":null}', 2, None)
    assert old.digest is None

    (found,) = read_lines(opened(b"abc\ntwo\n", old, kind=kind), old)
    assert found == all_lines(b"abc\ntwo\n")[1]  # from now on it is known which input it is
    assert read_bookmark(write_bookmark(bookmark(found)), 2, None).digest == found.digest
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
    with pytest.raises(InvalidProducerStateError, match="first 12 bytes are others"):
        opened(text.replace(b"1", b"7"), start)


def test_without_a_state_nothing_is_hashed():
    source = PublishedInput(BytesIO(b"a\n"), "x", remembers=False)
    source.begin(BEGINNING)

    assert [line.digest for line in read_lines(source, BEGINNING)] == [None]


class Growing(BytesIO):
    """Somebody goes on writing when the end was read."""

    def __next__(self):
        line = super().__next__()
        if not line.endswith(b"\n"):
            at = self.tell()
            self.write(b"tial\n")
            self.seek(at)
        return line


@pytest.mark.parametrize("remembers", [True, False])
def test_a_line_that_is_read_while_it_is_written_is_told_as_what_it_is(remembers):
    """Whatever state there is: the input is the right one, and not complete."""
    source = PublishedInput(Growing(b"whole\npar"), "events.jsonl", remembers=remembers)
    source.begin(BEGINNING)
    lines = read_lines(source, BEGINNING)

    assert [next(lines).body, next(lines).body] == [b"whole", b"par"]
    with pytest.raises(
        PublishSettingsError, match=r"events\.jsonl: its last line was read before it was written"
    ):
        next(lines)
