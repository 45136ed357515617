"""Jobs of Spark in a process of their own: one session for all of them, and what each of them said.

    python -m devstack.demo.spark.child '[{"job": "reconciliation", "arguments": ["--capture", "..."]}]' results.jsonl

The process of a demo holds the servers that the jobs talk to, so it must not run them itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec
from msgspec import Struct
from rich.console import Console

from devstack.processes.child import ChildProcess, ProcessError
from devstack.stack.supervisor import ROOT
from spark_jobs.cli import JOBS, run_command

LOOK_EVERY = 0.2
NEXT = "next: tidemark "
"""How a job begins the line that names the command after it."""
PROGRAM = ".venv/bin/tidemark"  # it is on nobody's PATH after `make demo`
_OF_DATABASE = ("spark backfill", "spark reconciliation")
"""Commands that read or write a database; the demo's ends with the demo."""
_ON_A_PAGE = re.compile(r"<figcaption>([^<]*)</figcaption><pre><code>tidemark ([^<]*)")
SMALL_DATA = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    # The plans are large and the data small: compiling a plan takes longer than running it once.
    # To check the classes of Spark, as of code that is not trusted, is a sixth of what its start takes.
    "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions"
    # One compiler gets 48 MB for its code, which fills: 53 tests took 94 CPU seconds of Java so, 68 with room (27 November 2026).
    " -XX:-BytecodeVerificationRemote -XX:ReservedCodeCacheSize=160m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",  # there is one partition: nothing to adapt, at a job more for each shuffle
}
"""Of a session for jobs that are over in seconds."""

_NAMES = ("r\nu\n", "r\nm\n")
"""How py4j begins the requests for what a name or a member of a class is."""
_UNCHANGING = ("yp", "yc", "ym")
"""The answers package, class, and method; a field's value may change."""


class JobCall(Struct, frozen=True):
    """A job of spark_jobs.cli.JOBS with its arguments."""

    job: str
    arguments: tuple[str, ...]
    title: str = ""

    @property
    def output(self) -> str:
        """The folder that the job writes to, "" if none is named."""
        return dict(pairwise(self.arguments)).get("--output", "")


class JobResult(Struct, frozen=True):
    """`status` is what the command would have ended with, `lines` what it wrote to its standard output."""

    job: str
    status: int
    seconds: float
    lines: tuple[str, ...]


def as_after_the_demo(line: str) -> str:
    """A line of a job; one that names the next command says how that is run when the demo is over."""
    if not line.startswith(NEXT):
        return line
    command = line.removeprefix(NEXT)
    when = "next, with a database of your own" if command.startswith(_OF_DATABASE) else "next"
    return f"{when}: {PROGRAM} {command}"


def page_as_after_the_demo(page: Path) -> None:
    """Says on a job's page, too, how its next command is run when the demo is over."""
    text = page.read_text(encoding="utf-8")
    page.write_text(_ON_A_PAGE.sub(_command_on_a_page, text), encoding="utf-8")


def _command_on_a_page(match: re.Match[str]) -> str:
    why, command = match.groups()
    if command.startswith(_OF_DATABASE):
        why = f"{why}; with a database of your own, for that of the demo has ended"
    return f"<figcaption>{why}</figcaption><pre><code>{PROGRAM} {command}"


class AfterTheDemo:
    """A stream whose lines are those of `as_after_the_demo`. A job writes each of them at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write("\n".join(map(as_after_the_demo, text.split("\n"))))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def remember_java_names() -> None:
    """Asks Java once what a name is, in place of once for each use. No class comes or goes while Java runs.

    For each part of `org.apache.spark...` py4j asks whether it is a class, and Java looks into all jars for those that are
    none: 54,649 of 107,000 requests of 30 tests (27 November 2026).
    """
    # Installed while the demo runs.
    from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]  # noqa: PLC0415

    ask = GatewayClient.send_command

    def send_command(self: Any, command: str, *options: Any, **named: Any) -> Any:
        if not command.startswith(_NAMES):
            return ask(self, command, *options, **named)
        known: dict[str, Any] = self.__dict__.setdefault("_answers", {})
        answer = known.get(command) or ask(self, command, *options, **named)
        if answer.startswith(_UNCHANGING):
            known[command] = answer
        return answer

    if ask.__module__ != __name__:  # a second time
        GatewayClient.send_command = send_command


async def run_jobs(
    calls: Sequence[JobCall],
    settings: Mapping[str, str],
    *,
    within: float,
    begin: Callable[[JobCall], None] = lambda _: None,
    done: Callable[[JobResult], None] = lambda _: None,
) -> list[JobResult]:
    """Runs the jobs one after the other, all of them whatever their status; tells of each when it begins and ends.

    `settings` are added to the environment. Raises ProcessError when the process ends before its jobs, or is not done
    `within` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.jsonl"
        plan = msgspec.json.encode(calls).decode()
        child = ChildProcess(
            "the process of the Spark jobs",
            # What is measured and shown meanwhile is to come first.
            ["nice", sys.executable, "-m", "devstack.demo.spark.child", plan, file],
            cwd=ROOT,
            env=settings,
        )
        child.start()
        results: list[JobResult] = []
        try:
            async with asyncio.timeout(within):
                for call in calls:
                    begin(call)
                    results.append(await _next(child, file, len(results)))
                    done(results[-1])
        except TimeoutError:
            raise ProcessError(
                f"{child.name} was not done within {within:g} s:\n{child.output_tail()}"
            ) from None
        finally:
            await child.stop_async()
        return results


async def _next(child: ChildProcess, file: Path, known: int) -> JobResult:
    while True:
        running = child.running  # before looking: what it wrote last is then seen
        results = read_results(file)
        if len(results) > known:
            return results[known]
        if not running:
            raise ProcessError(f"{child.name} ended by itself:\n{child.output_tail(40)}")
        await asyncio.sleep(LOOK_EVERY)


def read_results(file: Path) -> list[JobResult]:
    """Those that are written to their ends."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [msgspec.json.decode(line, type=JobResult) for line in lines if line.endswith(b"\n")]


def main(plan: str, file: str, aloud: str = "") -> None:
    """The child: runs what it is told in one session, and adds a line per job to the file.

    `aloud`: in the session that the first job makes, as it makes one for itself, and on this terminal.
    """
    calls = msgspec.json.decode(plan, type=list[JobCall])
    commands = [_command(call) for call in calls]  # before Java starts, which takes the longest
    if not aloud:
        from spark_jobs.sources.registration import spark_session  # noqa: PLC0415 - installed while the demo runs

        remember_java_names()
        spark_session("demo", cores=2, memory="1g", extra=SMALL_DATA)
    for number, (call, command) in enumerate(zip(calls, commands, strict=True), 1):
        result = _run_aloud(call, command, f"{number} of {len(calls)}") if aloud else _run(call, command)
        with Path(file).open("ab") as results:
            results.write(msgspec.json.encode(result) + b"\n")


def _command(call: JobCall) -> Callable[..., None]:
    command: Callable[..., None] = importlib.import_module(JOBS[call.job]).command
    return command


def _run_aloud(call: JobCall, command: Callable[..., None], place: str) -> JobResult:
    console = Console()
    console.rule(f"[bold]{place}: {call.job}[/]")
    console.print(call.title, markup=False)
    began = time.monotonic()
    out, err = (cast("TextIO", AfterTheDemo(stream)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = _ended(call, command)
    return JobResult(call.job, status, time.monotonic() - began, ())


def _run(call: JobCall, command: Callable[..., None]) -> JobResult:
    began = time.monotonic()
    said, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            status = _ended(call, command)
    finally:
        sys.stderr.write(errors.getvalue())
    outcome_lines = [line for line in errors.getvalue().splitlines() if line.startswith(("error: ", NEXT))]
    lines = [*(line for line in said.getvalue().splitlines() if line.strip()), *outcome_lines]
    return JobResult(call.job, status, time.monotonic() - began, tuple(lines))


def _ended(call: JobCall, command: Callable[..., None]) -> int:
    """The exit status of the job's command."""
    try:
        run_command(command, call.arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    finally:
        for page in Path(call.output).glob("*.html") if call.output else ():
            page_as_after_the_demo(page)
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
