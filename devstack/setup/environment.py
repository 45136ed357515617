"""Sets up what the Makefile's commands need, all of it below this folder but Debian's packages.

    python3 devstack/setup/environment.py demo     the local stack and the app; Spark follows while the demo runs
    python3 devstack/setup/environment.py dev      what style, types, benchmarks and Spark jobs need, too
    python3 devstack/setup/environment.py test     and what only tests need: a browser, PostgreSQL, a Java

A bare Python runs it, so it imports the standard library only. Each step says what it does, and at its end how much it
was and how long it took; what is there already is passed over without a word.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
WORKER = ROOT / "requirements-worker.txt"
LEVELS = ("demo", "dev", "test")
PYTHONS = (3, 11), (3, 13)
BROWSERS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
"""The first one found is used. The shell opens a page for a seventh of the CPU that Chromium takes: it draws no toolbars beside it."""
SERVERS = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
TAIL = 15  # lines of a failed command that are shown


class SetupError(RuntimeError):
    """A step failed; the text says which, and what its command wrote."""


class Board:
    """What is being done, on one line that moves where there is a terminal; what was done, a line each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._moves = sys.stdout.isatty()

    @contextmanager
    def step(self, name: str, folder: Path | None = None) -> Iterator[None]:
        """Tells of one step; its size is by how much `folder` grew."""
        began, before = time.monotonic(), _megabytes(folder)
        with self._lock:
            self._running[name] = began
        if not self._moves:
            self._print(f"{name} ...")
        try:
            yield
        finally:
            with self._lock:
                del self._running[name]
        grown = _megabytes(folder) - before
        size = f"{grown:,.0f} MB, " if folder is not None else ""
        self._print(f"{name}: {size}{time.monotonic() - began:.0f} s")

    def note(self, text: str) -> None:
        """A line that stays."""
        self._print(text)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Where there is a terminal, the line of what runs is drawn anew every half second."""
        over = threading.Event()
        drawing = threading.Thread(target=self._draw, args=(over,), daemon=True)
        if self._moves:
            drawing.start()
        try:
            yield
        finally:
            over.set()
            if self._moves:
                drawing.join()

    def _draw(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            now = time.monotonic()
            with self._lock:
                steps = [f"{name} {now - began:.0f} s" for name, began in self._running.items()]
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\033[K" + " · ".join(steps)[:width])
        self._write("\r\033[K")

    def _print(self, text: str) -> None:
        self._write(f"\r\033[K{text}\n" if self._moves else f"{text}\n")

    def _write(self, text: str) -> None:
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()


def main(level: str) -> None:
    """Sets up one level. Raises SetupError."""
    version = sys.version_info[:2]
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        raise SetupError(
            f"Tidemark needs Python 3.11 to 3.13; found {version[0]}.{version[1]}."
            " Name another one: make PYTHON=python3.12 ..."
        )
    board = Board()
    with LOCK.open("rb") as lock, board.shown():
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # of two at once (make -j) the second waits, then finds the work done
        _environment(board)
        ways: list[Callable[[], None]] = [
            lambda: _packages_and_java(board, level),
            lambda: _node_packages(board, level),
        ]
        if level == "test":
            ways.append(lambda: _debian(board))
        with ThreadPoolExecutor(len(ways)) as pool:  # they wait for the network, and for one another's disk
            for way in [pool.submit(way) for way in ways]:
                way.result()


def forget_broken_off() -> None:
    """Takes away the metadata of packages whose installation was broken off: with it, uv takes them for installed.

    INSTALLER is among the last files that uv and pip write.
    """
    for metadata in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (metadata / "INSTALLER").exists():
            shutil.rmtree(metadata)


def spark_command() -> list[str]:
    """The command that adds what the Spark jobs need to an environment of level `demo`."""
    return _install("--constraint", str(_constraint()), *_ours(cli="[spark]"))


def _environment(board: Board) -> None:
    uv = VENV / "bin" / "uv"
    if PYTHON.exists() and _works(str(uv), "--version"):
        return
    # The program python is there before pip is: a broken-off environment has one, and so has one made where Debian's
    # package python3-venv was missing. Made again, it gets what it lacks and keeps what it has.
    if not _works(str(PYTHON), "-m", "pip", "--version"):
        with board.step(f"Python {sys.version.split()[0]}, an environment in .venv", VENV):
            for mark in VENV.glob(".ready-*"):  # of a Python that is gone, with its packages
                mark.unlink()
            _run([sys.executable, "-m", "venv", str(VENV)])
    if not _works(str(uv), "--version"):
        pinned = re.search(r"^uv==\S+(?: \\\n +--hash=\S+)*", LOCK.read_text(), re.MULTILINE)
        wanted = VENV / "uv.txt"
        wanted.write_text(pinned[0] if pinned else "uv")
        with board.step("uv, which installs packages in a fifth of pip's time", VENV):
            try:
                _run([*_pip(), "--requirement", str(wanted)])
            except SetupError:  # a platform without it
                board.note("uv is not to be had here; pip installs the packages, which takes minutes")


def _packages_and_java(board: Board, level: str) -> None:
    _packages(board, level)
    if level == "test":
        with board.step("Java for Spark"):
            _run([str(PYTHON), "-m", "spark_jobs.java"])


def _packages(board: Board, level: str) -> None:
    inputs = (ROOT / "pyproject.toml", ROOT / "cli" / "pyproject.toml", LOCK, WORKER)
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    mark = VENV / f".ready-{'demo' if level == 'demo' else 'dev'}"
    if any(path.exists() and path.read_text() == wanted for path in (mark, VENV / ".ready-dev")):
        return
    forget_broken_off()
    with board.step(f"Python packages for {'the demo' if level == 'demo' else 'development'}", VENV):
        if level == "demo":
            ours = _ours("[devstack,publisher]", "[autoscaler,consumer]")
            _run(_install("--constraint", str(_constraint()), *ours))
        else:
            _run(_install("--requirement", str(LOCK)))
            # Microsoft's worker declares Python 3.13 and runs on all of ours; uv has no word for that.
            _run([*_pip(), "--no-deps", "--ignore-requires-python", "--requirement", str(WORKER)])
            _run(_install("--no-deps", *_ours()))
    mark.write_text(wanted)


def _node_packages(board: Board, level: str) -> None:
    sys.path.insert(0, str(ROOT))
    from devstack.processes.node import packages_ready  # noqa: PLC0415 - a file that is run has to find its package

    only = ["--only-azurite"] if level == "demo" else []
    if packages_ready(only_azurite=bool(only)):
        return
    with board.step(
        "Azurite (npm)" if only else "Azurite and JavaScript SDKs (npm)", ROOT / "devstack" / "node_modules"
    ):
        _run([str(PYTHON), "-m", "devstack.processes.node", *only])


def _debian(board: Board) -> None:
    """What only tests need, where it can be installed without asking; elsewhere those tests are skipped."""
    skipped = "will be skipped (on CI they fail)"
    browser = next(filter(shutil.which, BROWSERS), None)
    if browser is None or (_may_install() and browser != BROWSERS[0]):
        packages, without = (BROWSERS[:1], f"run in {browser}") if browser else (BROWSERS[:2], skipped)
        _install_first(board, packages, "the dashboard's tests in a browser", without)
    if shutil.which("initdb") is None and not SERVERS:
        _install_first(board, ("postgresql",), "the SQL sink's tests on a server", skipped)


def _install_first(board: Board, packages: Sequence[str], tests: str, without: str) -> None:
    """Installs the first of Debian's packages that can be had; says what becomes of the tests without."""
    for package in packages if _may_install() else ():
        try:
            with board.step(f"{package} (Debian), for {tests}"):
                _run(["apt-get", "update", "-q"])
                _run(["apt-get", "install", "-y", "-q", package])
        except SetupError as error:
            board.note(str(error))
        else:
            return
    board.note(f"no {packages[0]} found: {tests} {without}")


def _may_install() -> bool:
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def _ours(library: str = "", cli: str = "") -> list[str]:
    """Both projects of the clone, with these extras. The program needs the library of the same folder."""
    # For uv the sources in cli/pyproject.toml name the library as well, as a copy: two places for one package.
    words = ["--no-sources"] if (VENV / "bin" / "uv").exists() else []
    return [*words, "--editable", f"{ROOT}{library}", "--editable", f"{ROOT / 'cli'}{cli}"]


def _constraint() -> Path:
    """The versions of the lock file. pip refuses its hashes beside a package that is no file, as this one."""
    if (VENV / "bin" / "uv").exists():
        return LOCK
    plain = VENV / "constraints.txt"
    plain.write_text(re.sub(r" \\\n +--hash=\S+", "", LOCK.read_text()))
    return plain


def _install(*arguments: str) -> list[str]:
    uv = VENV / "bin" / "uv"
    return (
        [str(uv), "pip", "install", "--python", str(PYTHON), *arguments]
        if uv.exists()
        else [*_pip(), *arguments]
    )


def _pip() -> list[str]:
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]


def _works(*command: str) -> bool:
    """Whether the program runs, which one that is there may not: its installation may have been broken off."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(command: Sequence[str]) -> None:
    answer = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-TAIL:])
        raise SetupError(f"{' '.join(command)} failed with exit status {answer.returncode}:\n{tail}")


def _megabytes(folder: Path | None) -> float:
    if folder is None or not folder.exists():
        return 0.0
    files = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if file.exists()) / 1e6


if __name__ == "__main__":
    if sys.argv[1:] not in ([level] for level in LEVELS):
        sys.exit(f"usage: environment.py {'|'.join(LEVELS)}")
    try:
        main(sys.argv[1])
    except SetupError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\nstopped; the next make goes on")
