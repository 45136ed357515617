"""The demo as a newcomer starts it, with less load: it ends by itself, tells what happened, leaves nothing."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.wire, pytest.mark.xdist_group("demo"), pytest.mark.timeout(240)]


def start(folder, *options):
    return subprocess.Popen(
        [sys.executable, "-m", "devstack", "demo", "--folder", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "DEMO_UNDER_TEST": str(folder), "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_behind(folder):
    """Processes that carry this test's mark in their environment."""
    mark = f"DEMO_UNDER_TEST={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue  # it ended, or is not ours
    return found


def test_the_demo_loses_nothing_scales_both_ways_and_leaves_plots(tmp_path):
    demo = start(tmp_path, "--seconds", "40")

    output, _ = demo.communicate(timeout=200)

    assert demo.returncode == 0, output
    assert "passed: nothing lost, scaled out and in" in output
    assert re.search(r"messages in +2200\b", output), output
    assert re.search(r"messages out +2200\b", output), output
    assert "0 lost" in output
    assert re.search(r"out 1 -> 3 .* average backlog \d", output), output
    assert (tmp_path / "autoscaling.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "autoscaling.svg").read_text()
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path, number):
    demo = start(tmp_path)
    for line in demo.stdout:
        if "dashboard:" in line:
            break
    assert left_behind(tmp_path)

    demo.send_signal(number)
    output, _ = demo.communicate(timeout=60)

    assert demo.returncode == 130, output
    deadline = time.monotonic() + 5
    while left_behind(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind(tmp_path) == []
