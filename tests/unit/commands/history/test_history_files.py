"""The file of a history: whole or absent, read back as it was written, and of one source only."""

import builtins
import gzip
import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.disk import record_disk_calls
from tidemark.analysis.backtest.reading import read_arrivals
from tidemark.analysis.backtest.replay.history import Reading
from tidemark.commands.history import files
from tidemark.commands.history.model import Minute, PullError
from tidemark.foundation.version import install_hint

MINUTES = {
    29_000_000: Minute(5.0, 2),
    29_000_001: Minute(),
    29_000_002: Minute(0.0),
    29_000_003: Minute(2.5, 3),
}
ENDINGS = ["csv", "csv.gz", "parquet"]

minutes = st.dictionaries(
    st.integers(20_000_000, 40_000_000),
    st.builds(Minute, st.none() | st.floats(0, 1e12), st.none() | st.integers(1, 1_000)),
)


@pytest.mark.parametrize("ending", ENDINGS)
@given(known=minutes, target=st.text("abc-_ü,\" '", min_size=1))
def test_what_is_written_is_read_again(tmp_path_factory, ending, known, target):
    path = tmp_path_factory.mktemp("files") / f"h.{ending}"

    files.save(path, target, "bus/orders", known)

    assert files.load(path, target, "bus/orders") == known
    assert [*path.parent.iterdir()] == [path]


def test_csv_is_in_the_order_of_time_in_utc_and_gaps_are_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    path = tmp_path / "h.csv"

    files.save(path, "plan", "bus/orders", dict(reversed(MINUTES.items())))

    monkeypatch.undo()
    time.tzset()
    assert path.read_text().splitlines() == [
        "t,target,arrivals,instances,source",
        "2025-02-19T21:20:00Z,plan,5,2,bus/orders",
        "2025-02-19T21:21:00Z,plan,,,bus/orders",
        "2025-02-19T21:22:00Z,plan,0,,bus/orders",
        "2025-02-19T21:23:00Z,plan,2.5,3,bus/orders",
    ]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_backtest_reads_it(tmp_path, ending):
    files.save(tmp_path / f"h.{ending}", "plan", "bus/orders", MINUTES)

    assert read_arrivals(tmp_path) == {
        "plan": [
            Reading(1_740_000_000.0, arrivals=5.0, instances=2),
            Reading(1_740_000_120.0, arrivals=0.0),
            Reading(1_740_000_180.0, arrivals=2.5, instances=3),
        ]
    }


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_of_another_target_or_queue_is_refused_with_both_names(tmp_path, ending):
    path = tmp_path / f"h.{ending}"
    files.save(path, "plan", "bus/orders", MINUTES)
    before = path.read_bytes()

    with pytest.raises(
        PullError, match="holds bus/orders for target 'plan', not bus/orders for 'other'; give another file"
    ):
        files.load(path, "other", "bus/orders")
    with pytest.raises(PullError, match="holds bus/orders for target 'plan', not bus/invoices for 'plan'"):
        files.load(path, "plan", "bus/invoices")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("h.csv", b"t,arrivals\n1,2\n", "has the columns t, arrivals, not t, target, arrivals"),
        ("h.csv", b"", "has the columns nothing"),
        ("h.csv", b"\xff\xfe\x00", "cannot be read"),
        ("h.csv", b"t,target,arrivals,instances,source\nnow,plan,5,,bus/orders\n", "found the row"),
        ("h.csv", b"t,target,arrivals,instances,source\n2025-02-19T21:20:00Z,plan\n", "for target 'plan'"),
        *(
            ("h.csv", b"t,target,arrivals,instances,source\n2025-02-19T21:20:00Z,plan,%b,%b,bus/orders\n" % odd, "found the row")
            for odd in ((b"nan", b""), (b"inf", b""), (b"-5", b""), (b"5", b"inf"), (b"5", b"-1"))
        ),
        ("h.csv.gz", b"not gzip", "cannot be read"),
        ("h.csv.gz", gzip.compress(b"t,target", mtime=0)[:-9], "cannot be read"),
        ("h.parquet", b"PAR1", "cannot be read"),
    ],
)  # fmt: skip
def test_files_that_are_no_history_are_refused_and_stay(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(PullError, match=told):
        files.load(tmp_path / name, "plan", "bus/orders")
    assert (tmp_path / name).read_bytes() == content


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "h.csv"
    files.save(path, "plan", "bus/orders", MINUTES)
    before = path.read_bytes()

    def full(_file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PullError, match=r"h\.csv cannot be written: No space left"):
        files.save(path, "plan", "bus/orders", {})

    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_a_history_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    happened = record_disk_calls(monkeypatch)
    files.save(tmp_path / "h.csv", "plan", "bus/orders", MINUTES)

    assert happened == [("fsync", ".h.csv.new"), ("rename", ".h.csv.new")]


def test_parquet_without_pyarrow_says_what_to_install_and_csv_needs_nothing(tmp_path, monkeypatch):
    import_ = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] in {"pyarrow", "pandas"}:
            raise ModuleNotFoundError(name)
        return import_(name, *arguments, **options)

    monkeypatch.setattr(files, "find_spec", lambda _name: None)
    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(
        PullError,
        match=re.escape(f"needs the package pyarrow: {install_hint('analysis')}; .csv"),
    ):
        files.check_place(tmp_path / "h.parquet")
    files.check_place(tmp_path / "h.csv")
    files.save(tmp_path / "h.csv", "plan", "bus/orders", MINUTES)
    assert files.load(tmp_path / "h.csv", "plan", "bus/orders") == MINUTES


@pytest.mark.parametrize("name", ["h.txt", "h", "nowhere/h.csv", "folder.csv"])
def test_places_where_no_history_can_be_are_told_first(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()

    with pytest.raises(PullError, match="--out: found"):
        files.check_place(tmp_path / name)
