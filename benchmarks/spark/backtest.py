"""Replays of a grid: evaluations (candidate x target x minute) per CPU second, in Spark and in a bare loop.

    python -m benchmarks.spark.backtest [--targets 40] [--minutes 1440] [--candidates 48] [--cells spark1,bare,...]

Each cell is a process of its own over the same files. `naive` is one threshold rule and its queue in ten lines of
Python, without bounds, reasons, states or effects: for scale. `bare` is a plain loop over the same function that Spark's
workers call: the peer of the engine's cost. `every tick` is `bare` with nothing skipped: each evaluation goes through
absorb, decide and advance, as in production. CPU seconds are user and system time of the process tree, `work` without
the start of Python, imports and session.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.spark.usage import cpu_seconds, peak_megabytes

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "devstack" / "data" / "wc98-1998-06-15.csv"
START = 1_790_000_000

CONFIG = """
version = 1
[targets.plan]
scaler = "app_service_plan"
resource_id = "%PLAN_ID%"
maximum = 10
[targets.plan.metrics.backlog]
collector = "service_bus_queue"
connection = "Bus"
queue = "orders"
window = "10m"
[[targets.plan.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = 300
"""

CELLS = ("naive", "bare", "bare every tick", "spark 1 core", "spark 2 cores")


def grid(candidates: int) -> str:
    """`candidates` thresholds in steps of 100, the cooldowns alternating; with the baseline one more is replayed."""
    levels = [200 + 100 * index for index in range(-(-candidates // 2))]
    return (
        'base = "plan"\n[model]\nservice_rate = 1.6\nslo = "2m"\n[vary]\n'
        f'rules.threshold.scale_out_above = {levels}\nout.cooldown = ["5m", "10m"]\n'
    )


def generate(folder: Path, targets: int, minutes: int, candidates: int) -> None:
    import numpy as np

    rng = np.random.default_rng(20261121)
    with TRACE.open() as file:
        shape = np.array([float(row["arrivals"]) for row in csv.DictReader(file)])
    (folder / "arrivals").mkdir()
    for number in range(targets):
        load = np.resize(np.roll(shape, 37 * number), minutes)
        counts = rng.poisson(load / load.mean() * 500)
        lines = (f"{START + 60 * minute},{count}\n" for minute, count in enumerate(counts))
        (folder / "arrivals" / f"plan-{number:04d}.csv").write_text("t,arrivals\n" + "".join(lines))
    (folder / "grid.toml").write_text(grid(candidates))
    (folder / "tidemark.toml").write_text(CONFIG)


def arrivals(folder: Path) -> list[list[float]]:
    return [
        [float(line.partition(",")[2]) for line in file.read_text().splitlines()[1:]]
        for file in sorted((folder / "arrivals").iterdir())
    ]


def naive(folder: Path) -> Callable[[], object]:
    loads = arrivals(folder)
    count = json.loads((folder / "sizes.json").read_text())["candidates"] + 1

    def run() -> int:
        actions = 0
        for bins in loads:
            for candidate in range(count):
                above, waiting, capacity, now, last = 200.0 + 50 * candidate, 0.0, 6, 0.0, -1e9
                history: list[float] = []
                for arrived in bins:
                    waiting = max(0.0, waiting + arrived - capacity * 96.0)
                    now += 60.0
                    history.append(waiting)
                    if len(history) > 10:
                        history.pop(0)
                    if now - last > 600.0 and len(history) == 10:
                        if sum(history) / 10 > above and capacity < 10:
                            capacity, last, actions = capacity + 1, now, actions + 1
                        elif max(history) < 300.0 and capacity > 1:
                            capacity, last, actions = capacity - 1, now, actions + 1
        return actions

    return run


def bare(folder: Path, *, every_tick: bool = False) -> Callable[[], object]:
    from scaling.config.policy import Policy
    from tidemark.analysis.backtest.analysis import plan_job
    from tidemark.analysis.backtest.local import read_settings
    from tidemark.analysis.backtest.reading import read_arrivals
    from tidemark.analysis.backtest.replay.simulate import simulate, starting_instances
    from tidemark.analysis.backtest.work import Replayer, prepare

    readings = read_arrivals(folder / "arrivals")
    plan, targets = read_settings(folder / "grid.toml", folder / "tidemark.toml", {})
    job = plan_job(plan, targets, readings)

    def run() -> None:
        for target, rows in readings.items():
            metric, interval = job.metric(target), job.interval(target)
            replayer = Replayer(prepare(target, rows, job.settings, metric=metric, interval=interval))
            if not every_tick:
                replayer.rows(job.policies(target))
                continue
            for _, spec in job.policies(target):
                load, _ = replayer.load(spec)
                initial = starting_instances(load, replayer.model)
                policy = Policy(spec)
                simulate(load, policy, replayer.model, metric="backlog", initial=initial, every_tick=True)

    return run


def spark(folder: Path, cores: int) -> Callable[[], object]:
    from spark_jobs.backtest.job import Settings, score
    from spark_jobs.per_target import recorded, small_batches
    from spark_jobs.sources.registration import spark_session
    from tidemark.analysis.backtest.analysis import plan_job
    from tidemark.analysis.backtest.local import read_settings

    session = spark_session("backtest", cores=cores, memory="1g")
    session.range(1).count()
    config, arrivals = folder / "tidemark.toml", str(folder / "arrivals")
    settings = Settings(grid=folder / "grid.toml", config=config, arrivals=arrivals)
    plan, targets = read_settings(settings.grid, settings.config, {})

    def run() -> None:
        with recorded(session, settings) as history, small_batches(session):
            scored = score(session, plan_job(plan, targets, history.names), history)
            scored.write.format("noop").mode("overwrite").save()

    return run


def cell(name: str, folder: Path) -> None:
    """Runs one cell in this process; prints its figures as JSON."""
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        "naive": lambda: naive(folder),
        "bare": lambda: bare(folder),
        "bare every tick": lambda: bare(folder, every_tick=True),
        "spark 1 core": lambda: spark(folder, 1),
        "spark 2 cores": lambda: spark(folder, 2),
    }
    run = makers[name]()
    begin, cpu = time.perf_counter(), cpu_seconds()
    run()
    wall, used = time.perf_counter() - begin, cpu_seconds() - cpu
    print(json.dumps({"wall": wall, "work": used, "cpu": cpu_seconds(), "peak": peak_megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", type=int, default=40)
    parser.add_argument("--minutes", type=int, default=1440)
    parser.add_argument("--candidates", type=int, default=48, help="beside the baseline; an even number")
    parser.add_argument("--cells", default=",".join(CELLS), help="of " + ", ".join(CELLS))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        cell(given.cell, given.folder)
        return
    candidates = given.candidates + given.candidates % 2
    evaluations = given.targets * (given.minutes + 1) * (candidates + 1)
    print(
        f"{evaluations:,} evaluations: {given.targets} targets x {candidates + 1} candidates x {given.minutes} minutes"
    )
    print(
        f"{'cell':<18} {'wall s':>8} {'work s':>8} {'CPU s':>8} {'us each':>8} {'per s of work':>14} {'of bare':>8} {'MB':>7}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, given.targets, given.minutes, candidates)
        (folder / "sizes.json").write_text(json.dumps({"candidates": candidates}))
        loop: float | None = None
        for wanted in given.cells.split(","):
            command = [sys.executable, "-m", "benchmarks.spark.backtest", "--cell", wanted, "--folder", name]
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, cwd=ROOT, env=os.environ
            )
            measured = json.loads(done.stdout.splitlines()[-1])
            if wanted == "bare":
                loop = measured["work"]
            per_evaluation = measured["work"] / evaluations
            ratio = f"{measured['work'] / loop:.2f}" if loop else "-"
            print(
                f"{wanted:<18} {measured['wall']:>8.1f} {measured['work']:>8.1f} {measured['cpu']:>8.1f} {per_evaluation * 1e6:>8.2f} "
                f"{1 / per_evaluation:>14,.0f} {ratio:>8} {measured['peak']:>7,.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
