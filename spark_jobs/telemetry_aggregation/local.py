"""`tidemark telemetry-aggregation`: samples to windows on one machine, on all its cores, without Spark."""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import typer
from typer import Option

from spark_jobs import cli
from spark_jobs.errors import InputError
from spark_jobs.telemetry_aggregation.minutes import tables
from spark_jobs.telemetry_aggregation.minutes.samples import MINUTE, WINDOWS, Series
from spark_jobs.telemetry_aggregation.stretches import stretch
from spark_jobs.telemetry_aggregation.stretches.files import row_groups_of
from spark_jobs.telemetry_aggregation.stretches.process import keep_memory, without_pandas
from spark_jobs.telemetry_aggregation.stretches.stretch import RowGroup, Span, count_unread, count_within
from tidemark.analysis.gates import check, check_sum, exceeded, read_limits
from tidemark.analysis.option_values import moment, seconds
from tidemark.analysis.options import Allow, Since, Until
from tidemark.analysis.report import Report

GATES = ("ahead", "invalid", "duplicates")
FLUSHED = 100_000
"""States of hours that may wait for the end of their day; about 100 MB."""


class Counts(NamedTuple):
    """What became of the samples, as in the table QUALITY."""

    read: int = 0
    duplicates: int = 0
    late: int = 0
    ahead: int = 0
    invalid: int = 0


def aggregate(
    groups: Sequence[RowGroup],
    bounds: Span,
    write: Callable[[pa.Table], object],
    *,
    windows: Mapping[str, int] = WINDOWS,
    threads: int,
) -> Counts:
    """Writes the rows of all windows within the bounds, as tables.ROWS. The number of threads changes nothing but the time.

    Raises InputError for a file that cannot be read.
    """
    wider = {name: width for name, width in windows.items() if width > MINUTE}
    waiting: list[pa.Table] = []
    samples = copies = invalid = 0

    def finish(until: int) -> list[pa.Table]:
        """Writes hours and days that end by then; returns the states of the others."""
        states = pa.concat_tables(waiting)
        done = states.column("minute").to_numpy() < until
        write(tables.windows_of(states.filter(pa.array(done)), wider))
        return [states.filter(pa.array(~done))]

    with _threads(threads) as run:
        whole = stretch.whole(groups, bounds)
        for made in stretch.made(whole, Series(threading.Lock()), run, tuple(windows)):
            samples, copies, invalid = samples + made.samples, copies + made.copies, invalid + made.invalid
            if len(made.rows):
                write(made.rows)
            if made.invalid or not len(made.states):
                continue
            if sum(map(len, waiting)) > FLUSHED:
                begin = int(made.states.column("minute").to_numpy().min())
                waiting = finish(begin - begin % WINDOWS["1d"])
            waiting.append(made.states)
    if waiting:
        finish(bounds.end)
    return Counts(read=samples + copies + invalid, duplicates=copies, invalid=invalid)


@contextmanager
def _threads(count: int) -> Iterator[stretch.Run]:
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


# -- the files


class _Tables:
    """Parquet files that are complete or absent; they appear together, one right after the other. Of two runs into one folder
    each has files of its own until then, and the one that ends last stays.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = secrets.token_hex(4)
        self._writers: dict[str, pq.ParquetWriter] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, table: pa.Table) -> None:
        if name not in self._writers:
            self._writers[name] = pq.ParquetWriter(
                self._part(name), table.schema, use_dictionary=tables.TEXTS, store_schema=False
            )
        self._writers[name].write_table(table)

    def _part(self, name: str) -> Path:
        return self._folder / f".{name}.{self._run}.part"

    def close(self) -> None:
        """Leaves nothing of what was not published."""
        for name, writer in self._writers.items():
            writer.close()
            self._part(name).unlink(missing_ok=True)

    def publish(self) -> None:
        for writer in self._writers.values():
            writer.close()
        for name in self._writers:
            self._part(name).replace(self._folder / f"{name}.parquet")


def run(
    metrics: Path,
    output: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    latest: datetime,
    windows: Mapping[str, int] = WINDOWS,
    threads: int = 1,
) -> Counts:
    """Writes the tables gauges and quality; samples from `latest` on come from a clock that is ahead, and are left out.

    Raises InputError.
    """
    groups = row_groups_of(metrics)
    given, limit = Span.of(since, until), Span.of(None, latest).end
    within, beyond = given._replace(end=min(given.end, limit)), given._replace(begin=max(given.begin, limit))
    with closing(_Tables(output)) as made:
        counts = aggregate(groups, within, partial(made.write, "gauges"), windows=windows, threads=threads)
        ahead = count_within(groups, beyond)
        counts = counts._replace(read=counts.read + ahead, ahead=ahead)
        if since is None and until is None:
            unread = count_unread(groups, within.end)
            counts = counts._replace(read=counts.read + unread, invalid=counts.invalid + unread)
            check_sum("--metrics", sum(group.rows for group in groups), {"counted": counts.read})
        if counts.read == sum(counts[1:]):
            raise InputError("--metrics holds no valid record in the time asked for")
        quality = {"input": ["metrics"], **{name: [count] for name, count in counts._asdict().items()}}
        made.write("quality", pa.table(quality))
        made.publish()
    return counts


def command(
    metrics: Annotated[
        Path, Option(help="Samples as Parquet: target, metric, at, value; a folder or a file.")
    ],
    output: Annotated[Path, Option("--output", help="Folder of the tables.")] = Path("telemetry-output"),
    since: Since = None,
    until: Until = None,
    clock_skew: Annotated[
        str, Option(help="How far ahead of this machine's clock a sample's time may be; others are left out.")
    ] = "5m",
    windows: Annotated[str, Option(help="Which windows, with commas between them.")] = ",".join(WINDOWS),
    cores: Annotated[int | None, Option(min=1, show_default="all", help="Threads.")] = None,
    page: Annotated[bool, Option("--page/--no-page", help="Whether a page with plots is written.")] = True,  # noqa: FBT002 - an option
    allow: Allow = None,
) -> None:
    """Backlog percentiles, means and time to drain by minute, hour and day: the table gauges, as Parquet, quality, and a page.

    The same digits as `tidemark spark telemetry-aggregation --metrics`, which also reads logs.
    """
    limits = read_limits(allow or (), GATES)
    bounds = moment("--from", since), moment("--to", until)
    latest = datetime.now(UTC) + timedelta(seconds=seconds("--clock-skew", clock_skew))
    wanted = {name: WINDOWS[name] for name in WINDOWS if name in windows.split(",")}
    if not wanted or set(windows.split(",")) - wanted.keys():
        raise InputError(
            f"--windows is '{windows}'; accepted: one or more of {', '.join(WINDOWS)}, with commas between them"
        )
    without_pandas()
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

        make = partial(_page, output / "gauges.parquet", list(wanted), counts, metrics)
        written = page_or_reason(
            make, lambda report: str(report.write(output)), str(output), Console(stderr=True)
        )
    typer.echo(written)
    check(exceeded(limits, counts._asdict(), counts.read), written)


def _page(gauges: Path, windows: Sequence[str], counts: Counts, metrics: Path) -> Report:
    from spark_jobs.telemetry_aggregation.pages.local_page import report_of  # noqa: PLC0415 - matplotlib takes a second

    return report_of(gauges, windows, ("metrics", *counts), metrics)


if __name__ == "__main__":
    cli.run_command(command)
