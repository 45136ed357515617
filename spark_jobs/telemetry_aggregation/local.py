"""`tidemark telemetry-aggregation`: samples to windows on one machine, on all its cores, without Spark."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import typer
from typer import Option

from spark_jobs import cli
from spark_jobs.telemetry_aggregation.files.accepted import row_groups_of
from spark_jobs.telemetry_aggregation.files.in_order import (
    FOR_EVER,
    Account,
    Ready,
    RowGroup,
    Run,
    Span,
    count_unread,
    count_within,
    in_order,
)
from spark_jobs.telemetry_aggregation.kernel.cells import Windows, joined, minutes_of, wider
from spark_jobs.telemetry_aggregation.kernel.columns import array_of, texts_of
from spark_jobs.telemetry_aggregation.kernel.rows import TEXTS, table_of, wider_windows
from spark_jobs.telemetry_aggregation.kernel.samples import HOUR, WINDOWS, Series, parts
from tidemark.analysis.errors import InputError
from tidemark.analysis.limits import check_sum, exceeded_limits, raise_for_failures, read_limits
from tidemark.analysis.option_values import moment, seconds
from tidemark.analysis.options import Allow, Since, Until
from tidemark.analysis.report import Report

LIMITED = dict.fromkeys(("ahead", "invalid", "duplicates"), "read")
FLUSHED = 100_000
"""Hours that may wait for the end of their day; about 200 MB."""


class Counts(NamedTuple):
    """What became of the samples, as in the table QUALITY."""

    read: int = 0
    duplicates: int = 0
    late: int = 0
    ahead: int = 0
    invalid: int = 0


Write = Callable[[pa.Table], object]
"""Takes rows of the table GAUGES."""


class Bounds(NamedTuple):
    """Which samples are aggregated; None does not bound. What is not before `latest` comes from a clock that is ahead."""

    since: datetime | None
    until: datetime | None
    latest: datetime


class _Minutes(NamedTuple):
    """The rows of some minutes, the minutes of hours that are not whole among them, and the hours that are, where wanted."""

    rows: pa.Table | None
    minutes: Windows | None
    hours: Windows | None
    samples: int
    copies: int
    begin: int


class _Wider:
    """Hours and days, made of minutes that come in the order of time. What is over does not wait."""

    def __init__(self, series: Series, windows: Collection[str], write: Write) -> None:
        self._series, self._windows, self._write = series, windows, write
        self._minutes: list[Windows] = []
        self._hours: list[Windows] = []

    def add(self, made: _Minutes) -> None:
        self._end_hours(made.begin - made.begin % HOUR)
        if sum(len(hour.start) for hour in self._hours) > FLUSHED:
            self._end_days(made.begin - made.begin % WINDOWS["1d"])
        for waiting, more in ((self._minutes, made.minutes), (self._hours, made.hours)):
            if more is not None and len(more.start):
                waiting.append(more)

    def finish(self) -> None:
        self._end_hours(FOR_EVER[1])
        self._end_days(FOR_EVER[1])

    def _end_hours(self, until: int) -> None:
        # All minutes of an hour are added up at once: so its digits do not depend on where samples were cut.
        over, self._minutes = _over(self._minutes, until)
        if over is not None:
            self._hours.append(wider(over, HOUR))

    def _end_days(self, until: int) -> None:
        over, self._hours = _over(self._hours, until)
        if over is not None:
            for name, windows in wider_windows(over, ("1h", "1d"), self._windows):
                self._write(table_of(name, windows, self._series))


def _over(windows: list[Windows], until: int) -> tuple[Windows | None, list[Windows]]:
    """Those that begin before a time (microseconds), and the others."""
    if not any(window.start.min() < until for window in windows):
        return None, windows
    all_windows = joined(windows)
    over = all_windows.start < until
    return all_windows.where(over), [] if over.all() else [all_windows.where(~over)]


def aggregate(
    groups: Sequence[RowGroup],
    bounds: Span,
    write: Write,
    folder: Path,
    *,
    windows: Collection[str] = tuple(WINDOWS),
    threads: int,
) -> Counts:
    """Writes the rows of all windows within the bounds. The number of threads changes nothing but the time; the folder is for
    files that are needed meanwhile. Raises InputError for a file that cannot be read.
    """
    series, account = Series(threading.Lock()), Account()
    longer = _Wider(series, windows, write)
    samples = copies = 0
    with _threads(threads) as run:
        ready = in_order(groups, bounds, series, account, folder, run)
        work = partial(_minutes, series=series, windows={*windows})
        for made in filter(None, run(work, ready)):
            samples, copies = samples + made.samples, copies + made.copies
            if made.rows is not None:
                write(made.rows)
            longer.add(made)
    longer.finish()
    read = samples + copies + account.invalid
    return Counts(read=read, duplicates=copies, invalid=account.invalid)


def _minutes(ready: Ready, series: Series, windows: Collection[str]) -> _Minutes | None:
    given, span = ready
    minutes_by_part = [minutes_of(part, distinct=True) for part in parts(given) if len(part.at)]
    if not minutes_by_part:
        return None
    minutes = joined(minutes_by_part)
    hours = minutes.start - minutes.start % HOUR
    whole = (hours >= span.begin) & (hours + HOUR <= span.end)
    wanted = windows != {"1m"}
    return _Minutes(
        table_of("1m", minutes, series) if "1m" in windows else None,
        minutes.where(~whole) if wanted else None,
        wider(minutes.where(whole), HOUR) if wanted and whole.any() else None,
        samples=int(minutes.samples.sum()),
        copies=int(minutes.copies.sum()),
        begin=int(minutes.start.min()),
    )


def aggregate_all(
    groups: Sequence[RowGroup],
    write: Write,
    folder: Path,
    bounds: Bounds,
    *,
    windows: Collection[str] = tuple(WINDOWS),
    threads: int,
) -> Counts:
    """As `aggregate`; what is ahead of the clock is counted.

    Raises InputError where there is no valid sample, JobError where a row is in no count.
    """
    given, limit = Span.of(bounds.since, bounds.until), Span.of(None, bounds.latest).end
    within, beyond = given._replace(end=min(given.end, limit)), given._replace(begin=max(given.begin, limit))
    counts = aggregate(groups, within, write, folder, windows=windows, threads=threads)
    ahead = count_within(groups, beyond)
    counts = counts._replace(read=counts.read + ahead, ahead=ahead)
    if bounds.since is None and bounds.until is None:
        unread = count_unread(groups, within.end)
        counts = counts._replace(read=counts.read + unread, invalid=counts.invalid + unread)
        check_sum("--metrics", sum(group.rows for group in groups), {"counted": counts.read})
    if counts.read == sum(counts[1:]):
        raise InputError("--metrics holds no valid record in the time asked for")
    return counts


@contextmanager
def _threads(count: int) -> Iterator[Run]:
    """As `map`, by threads, which are ahead of the reader by one result each at most."""
    with ThreadPoolExecutor(count) as executor:

        def run(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
            waiting: deque[Future[Any]] = deque()
            for item in items:
                waiting.append(executor.submit(work, item))
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        yield run


def keep_memory() -> None:
    """Glibc gives freed memory back and asks for it again, zeroed, unless it has seen a large piece freed: a fifth of the time."""
    np.empty(31 << 20, np.uint8)


# -- the files


class _Tables:
    """Parquet files that are complete or absent; they appear together, one right after the other. Of two runs into one folder
    each has files of its own until then, and the one that ends last stays.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, pq.ParquetWriter] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.part = folder / f".{secrets.token_hex(4)}.part"
        self.part.mkdir()

    def write(self, name: str, table: pa.Table) -> None:
        if name not in self._writers:
            self._writers[name] = table_writer(self.part / f"{name}.parquet", table.schema)
        self._writers[name].write_table(table)

    def close(self) -> None:
        """Leaves nothing of what was not published."""
        for writer in self._writers.values():
            writer.close()
        shutil.rmtree(self.part)

    def publish(self) -> None:
        for writer in self._writers.values():
            writer.close()
        for name in self._writers:
            (self.part / f"{name}.parquet").replace(self._folder / f"{name}.parquet")


def table_writer(file: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A file of a table; Spark reads it as well."""
    return pq.ParquetWriter(file, schema, use_dictionary=TEXTS, store_schema=False)


def run(
    metrics: Path,
    output: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    latest: datetime,
    windows: Collection[str] = tuple(WINDOWS),
    threads: int = 1,
) -> Counts:
    """Writes the tables gauges and quality. As `aggregate_all`."""
    groups = row_groups_of(metrics)
    with closing(_Tables(output)) as tables:
        write = partial(tables.write, "gauges")
        bounds = Bounds(since, until, latest)
        counts = aggregate_all(groups, write, tables.part, bounds, windows=windows, threads=threads)
        numbers = (array_of(np.array([count])) for count in counts)
        tables.write("quality", pa.table([texts_of(["metrics"]), *numbers], names=["input", *Counts._fields]))
        tables.publish()
    return counts


def command(
    metrics: Annotated[
        Path, Option(help="Samples as Parquet: target, metric, at, value; a folder or a file.")
    ],
    output: Annotated[
        Path, Option("--output", file_okay=False, writable=True, help="Folder of the tables.")
    ] = Path("telemetry-output"),
    since: Since = None,
    until: Until = None,
    clock_skew: Annotated[
        str, Option(help="How far ahead of this machine's clock a sample's time may be; others are left out.")
    ] = "5m",
    windows: Annotated[str, Option(help="Which windows, with commas between them.")] = ",".join(WINDOWS),
    cores: Annotated[int | None, Option(min=1, show_default="all", help="Threads.")] = None,
    page: Annotated[bool, Option("--page/--no-page", help="Whether a page with plots is written.")] = True,
    allow: Allow = None,
) -> None:
    """Backlog percentiles, means and time to drain by minute, hour and day: the table gauges, as Parquet, quality, and a page.

    The same digits as `tidemark spark telemetry-aggregation --metrics`, which also reads logs.
    """
    limits = read_limits(allow or (), LIMITED)
    bounds = moment("--from", since), moment("--to", until)
    latest = datetime.now(UTC) + timedelta(seconds=seconds("--clock-skew", clock_skew))
    wanted = [name for name in WINDOWS if name in windows.split(",")]
    if not wanted or set(windows.split(",")) - {*wanted}:
        raise InputError(
            f"--windows is '{windows}'; accepted: one or more of {', '.join(WINDOWS)}, with commas between them"
        )
    keep_memory()
    threads = cores or os.cpu_count() or 1
    counts = run(
        metrics, output, since=bounds[0], until=bounds[1], latest=latest, windows=wanted, threads=threads
    )
    typer.echo(", ".join(f"{name} {value:,}" for name, value in counts._asdict().items()))
    written = str(output / "gauges.parquet")
    if page:
        from tidemark.analysis.report import page_or_reason  # noqa: PLC0415
        from tidemark.foundation.log.terminal import Console  # noqa: PLC0415 - what is loaded before the samples are read costs a start

        make = partial(_page, output / "gauges.parquet", wanted, counts, metrics)
        written = page_or_reason(
            make, lambda report: str(report.write(output)), str(output), Console(stderr=True)
        )
    typer.echo(written)
    raise_for_failures(exceeded_limits(limits, counts._asdict(), LIMITED), written)


def _page(gauges: Path, windows: Sequence[str], counts: Counts, metrics: Path) -> Report:
    from spark_jobs.telemetry_aggregation.pages.local_page import report_of  # noqa: PLC0415 - matplotlib takes a second

    return report_of(gauges, windows, ("metrics", *counts), metrics)


if __name__ == "__main__":
    cli.run_command(command)
