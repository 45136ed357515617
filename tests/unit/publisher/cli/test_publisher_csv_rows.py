"""Rows of a CSV file as JSON."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.publisher.cli.csv_rows import CsvFormat, read_as_json_lines, read_rows
from tidemark.publisher.errors import PublishSettingsError

TEXTS = st.text(st.sampled_from('aö,"\n \r;'), max_size=4)


def file_of(text):
    return io.BytesIO(text.encode())


def rows(text, **start):
    return [(json.loads(row.body), row.line) for row in read_rows(file_of(text), "f.csv", **start)]


def test_the_first_row_names_the_fields_and_the_others_are_objects_of_texts():
    text = '\ufeffplane,"delay, in minutes"\r\nN1,5\r\n\r\n"N""2""",\r\n'

    assert rows(text) == [
        ({"plane": "N1", "delay, in minutes": "5"}, 2),
        ({"plane": 'N"2"', "delay, in minutes": ""}, 4),
    ]


def test_a_quoted_line_end_belongs_to_its_field():
    assert rows('a,b\n"1\n\n2",x\n3,y') == [({"a": "1\n\n2", "b": "x"}, 4), ({"a": "3", "b": "y"}, 5)]


@pytest.mark.parametrize("text", ["", "a,b\n", "\n\n"])
def test_without_rows_there_is_nothing(text):
    assert rows(text) == []


@pytest.mark.parametrize(
    ("text", "story"),
    [
        ("a,b\n1,2\n3\n", "f.csv, line 3: it has 1 field, the first row 2"),
        ('a,b\n"1\n2",x,y\n', "f.csv, line 3: it has 3 fields, the first row 2"),
        ("a,a\n1,2\n", "f.csv, line 1: the first row must name the fields, each once; it has a, a"),
        ("a,\n1,2\n", "f.csv, line 1: the first row must name the fields"),
        ('a,b\n1,"2\n', "f.csv, line 2: this is not CSV: unexpected end of data"),
        ('a,b\n1,2\n"1"x,2\n', "f.csv, line 3: this is not CSV"),
        ('a,b\n1,"2\\"x"\n', "f.csv, line 2: this is not CSV"),
        ("a,b;c\n1,2\n", "line 1: the first row contains ',' and ';', so its delimiter is ambiguous"),
        ("'a','b'\n'1','2'\n", "line 1: the names are in single quotes, accepted: double quotes, or none"),
        (
            'a,b\n1,"' + "x\n" * 600,
            "a row has more than 1,000 bytes, which is more than the service takes; is a quote",
        ),
        ("a,b\n1,x\0y\n", "f.csv, line 2: it contains NUL characters"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(text, story):
    with pytest.raises(PublishSettingsError) as refused:
        rows(text, max_bytes=1000)

    assert story in str(refused.value)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("id;n\r\na;1\r\n", {}),
        ("id\tn\na\t1\n", {}),
        ("id|n\na|1\n", {}),
        ("sep=;\nid;n\na;1\n", {}),
        ('"id, of it;";n\n"a";1\n', {"name": "id, of it;"}),
        ("id,x;n\na;1\n", {"delimiter": ";", "name": "id,x"}),
        ("id\tn\na\t1\n", {"delimiter": "tab"}),
        ("\ufeff\ufeffid;n\na;1\n", {}),
    ],
)
def test_what_separates_the_fields_is_found_out_by_the_first_row_or_said(text, given):
    """P3: a file with semicolons became {"id;n": "a;1"}."""
    format_ = CsvFormat.of_options(given.get("delimiter"), None, is_csv=True)

    assert [found for found, _ in rows(text, format_=format_)] == [{given.get("name", "id"): "a", "n": "1"}]


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "cp1250", "gb18030"])
def test_a_file_of_another_encoding_is_read_by_its_name(encoding):
    text = "name;städte\nä;ü€\n" if encoding != "latin-1" else "name;städte\nä;ü\n"
    format_ = CsvFormat.of_options(None, encoding, is_csv=True)
    (row,) = read_rows(io.BytesIO(text.encode(encoding)), "f.csv", format_=format_)

    assert json.loads(row.body) == {"name": "ä", "städte": text.split(";")[2].strip()}


@pytest.mark.parametrize(
    ("data", "given", "story"),
    [
        ("a;b\n".encode("utf-16"), {}, "f.csv is UTF-16LE by its first bytes, accepted: UTF-8; convert it"),
        (
            b"\xef\xbb\xbfa\n",
            {"encoding": "cp1252"},
            "f.csv is UTF-8 by its first bytes, --encoding is cp1252",
        ),
        (b"", {"encoding": "utf-16"}, "--encoding is 'utf-16', accepted: utf-8, cp1252"),
        (b"", {"encoding": "nothing"}, "--encoding is 'nothing', accepted"),
        (b"", {"encoding": "undefined"}, "--encoding is 'undefined', accepted"),
        (b"", {"encoding": "base64"}, "--encoding is 'base64', accepted"),
        (b"", {"delimiter": ";;"}, "--delimiter is ';;', accepted: one character, or tab"),
        (b"", {"delimiter": '"'}, "--delimiter is '\"', accepted: one character, or tab"),
        (b"", {"delimiter": ";", "is_csv": False}, "--delimiter needs a .csv"),
    ],
)
def test_a_format_that_cannot_be_is_refused_with_what_is_accepted(data, given, story):
    with pytest.raises(PublishSettingsError) as refused:
        format_ = CsvFormat.of_options(
            given.get("delimiter"), given.get("encoding"), is_csv=given.get("is_csv", True)
        )
        list(read_rows(io.BytesIO(data), "f.csv", format_=format_))

    assert story in str(refused.value)


def test_another_encoding_is_refused_by_its_line():
    with pytest.raises(PublishSettingsError, match=r"f\.csv, line 2: this is not UTF-8"):
        list(read_rows(io.BytesIO("a\nö\n".encode("latin-1")), "f.csv"))


@settings(max_examples=50)
@given(table=st.lists(st.tuples(TEXTS, TEXTS), max_size=6), end=st.sampled_from(["\n", "\r\n"]))
def test_reading_goes_on_after_any_row_where_it_ended(table, end):
    written = io.StringIO()
    writer = csv.writer(written, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *table])
    file = file_of(written.getvalue())

    csv_rows = list(read_rows(file, "f.csv"))

    assert [tuple(json.loads(row.body).values()) for row in csv_rows] == table
    for place, row in enumerate(csv_rows):
        assert list(read_rows(file, "f.csv", offset=row.end, line=row.line)) == csv_rows[place + 1 :]


def test_as_json_lines_every_row_keeps_the_number_of_its_last_line():
    lines = list(read_as_json_lines(file_of('a\n"1\n2"\n\n3\n'), "f.csv"))

    assert lines == [b"\n", b"\n", b'{"a":"1\\n2"}\n', b"\n", b'{"a":"3"}\n']
