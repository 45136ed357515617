"""Which capture files a stream takes: each once, however late, whatever was deleted since."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.errors import InputError
from spark_jobs.sources.capture.layout import CaptureLayout
from spark_jobs.sources.capture.offsets import CaptureFile, added, files_between, latest_offset

LAYOUT = CaptureLayout()


def capture(minute, partition="0", *, size=100, root="/lake/ns"):
    days, rest = divmod(minute, 1440)
    hour, minutes = divmod(rest, 60)
    name = f"{root}/orders/{partition}/2026/11/{days + 1:02d}/{hour:02d}/{minutes:02d}/00.avro"
    return CaptureFile(name, size, LAYOUT.place(name))


def taken(offset, files, **options):
    """The names of the next batch, and the offset after it."""
    end = latest_offset(offset, files, layout=LAYOUT, **options)
    return [file.name for file in files_between(offset, end, files, layout=LAYOUT)], end


def test_a_late_file_is_taken_also_where_as_many_old_ones_were_deleted():
    old, kept, late = capture(5), capture(10), capture(0)

    _, offset = taken({}, [old, kept])

    assert taken(offset, [late, kept])[0] == [late.name]


def test_a_file_of_a_known_time_is_taken_where_its_path_is_another():
    """Two namespaces, as of a geo pair, and a copy in another folder."""
    first, other, copy = capture(5), capture(5, root="/lake/ns2"), capture(5, root="/copy/lake/ns")
    unpadded = "/lake/ns/orders/0/2026/11/1/0/5/0.avro"
    files = [first, other, copy, CaptureFile(unpadded, 9, LAYOUT.place(unpadded))]

    _, offset = taken({}, [first])

    assert sorted(taken(offset, files)[0]) == sorted(file.name for file in files[1:])


def test_paths_whose_numbers_are_no_time_are_taken_each_once():
    names = [f"/lake/ns/orders/0/2026/{month}/45/08/05/00.avro" for month in (11, 13)]
    files = [CaptureFile(name, 1, LAYOUT.place(name)) for name in names]

    first, offset = taken({}, files)

    assert (first, taken(offset, files)[0]) == (names, [])


def test_a_file_that_is_gone_before_it_was_read_is_told_by_its_name_also_where_another_came():
    end = latest_offset({}, [capture(5), capture(10)], layout=LAYOUT)

    with pytest.raises(
        InputError, match=r"1 capture files.*/orders/0/####/##/##/##/##/##\.avro' of 2026-11-01 00:05:00"
    ):
        files_between({}, end, [capture(10), capture(15)], layout=LAYOUT)


def test_an_empty_newest_file_is_left_for_later_and_an_empty_older_one_is_not():
    files = [capture(5, size=0), capture(10, size=0), capture(5, "1")]

    assert taken({}, files)[0] == [files[0].name, files[2].name]


def test_a_checkpoint_that_counted_is_refused():
    with pytest.raises(InputError, match="earlier version"):
        files_between({"orders/0": {"file": "x", "taken": 1, "present": 1}}, {}, [], layout=LAYOUT)


def test_a_year_of_a_partition_is_one_run():
    runs = []
    for minute in range(0, 40_000, 5):
        runs = added(runs, [minute * 60])

    assert runs == [[0, 300, 8000]]


minutes = st.sets(st.integers(0, 3000), max_size=40)


@given(st.lists(st.tuples(minutes, minutes), max_size=6), st.integers(1, 7))
def test_each_file_is_taken_exactly_once_whatever_comes_and_goes(steps, limit):
    present, seen, offset = set(), [], {}
    for come, gone in steps:
        present = (present | come) - {minute for minute in gone if capture(minute).name in seen}
        files = [capture(minute) for minute in sorted(present, key=lambda minute: minute % 7)]
        bound = frozenset(file.name for file in files)
        while True:
            names, offset = taken(offset, files, limit=limit, ceiling=bound)
            if not names:
                break
            assert len(names) <= limit
            seen += names
        assert bound <= set(seen)

    assert len(seen) == len(set(seen))


@given(minutes, minutes)
def test_runs_are_the_sorted_set(first, second):
    runs = added(added([], first), second - first) if first and second - first else added([], first | {1})
    times = [begin + step * place for begin, step, count in runs for place in range(count)]

    assert times == sorted(set(times))
    assert set(times) == (first | second if first and second - first else first | {1})


def calls(work):
    """How many functions were called, in Python and in C: a count of operations, the same on every machine."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def planning(count):
    files = [capture(minute, str(partition)) for minute in range(0, count * 5, 5) for partition in range(4)]
    end = latest_offset({}, files, layout=LAYOUT)
    return calls(
        lambda: files_between(end, latest_offset(end, files, limit=8, layout=LAYOUT), files, layout=LAYOUT)
    ) + calls(lambda: files_between({}, latest_offset({}, files, layout=LAYOUT), files, layout=LAYOUT))


def test_four_times_the_files_take_about_four_times_the_operations_to_plan():
    assert planning(240) < 5 * planning(60)
