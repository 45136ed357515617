"""`tidemark runs`: what the runs of a job read, counted and left out, from the manifest in its output folder. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from rich.table import Table
from typer import Argument, Option

from spark_jobs.platform.manifest import MANIFEST, Manifest, Told
from spark_jobs.sources.files.input_files import Folder
from tidemark.analysis.errors import InputError, JobError
from tidemark.foundation.log.terminal import Console

console = Console()


def manifest_in(folder: str) -> Manifest:
    """The last finished run's. Raises InputError where none has finished, JobError for what is no manifest."""
    place = Folder(f"{folder.rstrip('/')}/{MANIFEST}")
    try:
        found = [place.read(file.name) for file in place.find(".txt")]
        runs = [msgspec.json.decode(bytes(text), type=Manifest) for text in found if text.nbytes]
    except InputError:
        runs = []
    except msgspec.DecodeError as error:
        raise JobError(f"{folder} holds what is no manifest of a run: {error}") from error
    if not runs:
        raise InputError(f"no run has finished in {folder}: it holds no manifest")
    return max(runs, key=lambda each: each.run)


def command(
    folder: Annotated[str, Argument(help="The --output of a job: a folder, or a URL such as abfss://...")],
    as_json: Annotated[bool, Option("--json", help="One JSON object per run.")] = False,
) -> None:
    """Runs that finished, the newest first: when, what they read and counted, and whether their gate was open."""
    manifest = manifest_in(folder)
    runs = list(reversed(manifest.runs or [Told(manifest.run)]))
    if as_json:
        for each in runs:
            print(msgspec.json.encode(each).decode())
        return
    table = Table("run", "finished (UTC)", "gate", "counts", "inputs", "settings", title=manifest.job)
    for each in runs:
        when = f"{datetime.fromtimestamp(each.at, UTC):%Y-%m-%d %H:%M:%S}" if each.at else "–"  # noqa: RUF001
        gate = "; ".join(each.closed) or "open"
        counts = "\n".join(f"{name} {count:,.10g}" for name, count in each.counts.items())
        inputs, settings = (
            "\n".join(f"{name} {value}" for name, value in told.items())
            for told in (each.inputs, each.settings)
        )
        table.add_row(str(each.run), when, gate, counts, inputs, settings)
    console.print(table, markup=False)
    names = ", ".join(sorted(manifest.tables))
    console.print(f"tables of run {manifest.run}: {names}", markup=False, soft_wrap=True)
