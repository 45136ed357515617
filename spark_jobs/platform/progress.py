"""What Spark is doing, for the person who waits: a live line on a terminal, one line at each end elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from spark_jobs.platform.classic import running_tasks
from tidemark.foundation.log.terminal import Console

REFRESH = 0.5  # seconds between looks at Spark's status

console = Console(stderr=True)


@contextmanager
def watch(spark: SparkSession, doing: str) -> Iterator[None]:
    """Shows `doing` ("reading the telemetry") with Spark's running tasks until the block ends."""
    begun = time.monotonic()
    if not console.is_terminal:
        console.print(doing, markup=False, soft_wrap=True)
        yield
    else:
        with console.status(doing) as status:

            def follow(stop: threading.Event) -> None:
                while not stop.wait(REFRESH):
                    with suppress(Exception):  # a picture of the progress must not end the work
                        status.update(f"{doing}  {running_tasks(spark)}")

            with beside(follow):
                yield
    console.print(f"{doing}: {time.monotonic() - begun:.1f} s", markup=False, soft_wrap=True)


@contextmanager
def beside(follow: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs `follow` on a thread; its event is set when the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=follow, args=(stop,), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
