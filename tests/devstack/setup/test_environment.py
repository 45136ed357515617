"""What `make demo`, `make setup` and `make test` install, and what they say meanwhile."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.setup import environment
from devstack.setup.environment import SetupError, main

ROOT = Path(__file__).parents[3]
WORKS = environment._works


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A fresh clone on a machine that has nothing, and the commands that would be run there."""
    ran = []
    (tmp_path / "cli").mkdir()
    for name in ("pyproject.toml", "cli/pyproject.toml", "requirements.lock", "requirements-worker.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())

    def run(command):
        ran.append([str(word).removeprefix(str(tmp_path) + "/") for word in command])
        if command[1:3] == ["-m", "venv"]:
            (tmp_path / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
            if not (tmp_path / ".venv" / "bin" / "python").exists():
                (tmp_path / ".venv" / "bin" / "python").touch()
        if str(command[-1]).endswith("uv.txt"):
            (tmp_path / ".venv" / "bin" / "uv").write_bytes(b"x" * 3_000_000)

    monkeypatch.setattr(environment, "_run", run)
    monkeypatch.setattr(environment, "_works", lambda program, *_: Path(program).exists())
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(environment, "LOCK", tmp_path / "requirements.lock")
    monkeypatch.setattr(environment, "WORKER", tmp_path / "requirements-worker.txt")
    monkeypatch.setattr(environment, "_node_packages", lambda board, level: ran.append(["npm", level]))
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/usr/bin/{name}")
    return ran


def packages(ran):
    """The words after `install` of what installs Python packages."""
    return [command[command.index("install") + 1 :] for command in ran if "install" in command]


def test_the_demo_installs_neither_spark_nor_what_only_tests_need(machine, tmp_path):
    main("demo")

    assert packages(machine)[1:] == [
        [
            "--python",
            ".venv/bin/python",
            "--constraint",
            "requirements.lock",
            "--no-sources",
            "--editable",
            f"{tmp_path}[devstack,publisher]",
            "--editable",
            "cli[autoscaler,consumer]",
        ]
    ]
    assert ["npm", "demo"] in machine


def test_what_is_there_is_passed_over_without_a_word(machine, capsys):
    main("demo")
    capsys.readouterr()
    machine.clear()

    main("demo")

    assert packages(machine) == []
    assert capsys.readouterr().out == ""


def test_what_development_needs_is_enough_for_the_demo_and_not_the_other_way_round(machine):
    main("demo")
    machine.clear()
    main("dev")
    assert packages(machine)

    machine.clear()
    main("demo")
    assert packages(machine) == []


def test_a_changed_lock_file_installs_anew(machine, tmp_path):
    main("demo")
    machine.clear()
    with (tmp_path / "requirements.lock").open("a") as lock:
        lock.write("another==1\n")

    main("demo")

    assert packages(machine)


def test_tests_have_java_and_what_debian_has(machine, monkeypatch):
    monkeypatch.setattr(
        environment.shutil, "which", lambda name: "/bin/apt-get" if name == "apt-get" else None
    )
    monkeypatch.setattr(environment.os, "geteuid", lambda: 0)
    monkeypatch.setattr(environment, "SERVERS", [])

    main("test")

    assert [command[-1] for command in machine if command[:2] == ["apt-get", "install"]] == [
        "chromium-headless-shell",
        "postgresql",
    ]
    assert any(command[-1] == "spark_jobs.java" for command in machine)


@pytest.mark.parametrize(
    ("there", "tried", "said"),
    [
        ("chromium", ["chromium-headless-shell"], "the dashboard's tests in a browser run in chromium"),
        (None, ["chromium-headless-shell", "chromium"], "in a browser will be skipped (on CI they fail)"),
    ],
)
def test_where_debian_has_no_headless_shell_another_browser_does(
    machine, monkeypatch, capsys, there, tried, said
):
    def run(command):
        done(command)
        if command[:2] == ["apt-get", "install"]:
            raise SetupError("no such package")

    done = environment._run
    monkeypatch.setattr(environment, "_run", run)
    monkeypatch.setattr(
        environment.shutil,
        "which",
        lambda name: f"/bin/{name}" if name in {"apt-get", "initdb", there} else None,
    )
    monkeypatch.setattr(environment.os, "geteuid", lambda: 0)

    main("test")

    assert [command[-1] for command in machine if command[:2] == ["apt-get", "install"]] == tried
    assert said in capsys.readouterr().out


def test_each_step_is_told_when_it_begins_and_with_its_size_and_time_when_it_ends(machine, capsys):
    main("demo")

    lines = capsys.readouterr().out.splitlines()
    assert "uv, which installs packages in a fifth of pip's time ..." in lines
    assert "uv, which installs packages in a fifth of pip's time: 3 MB, 0 s" in lines


def test_a_step_that_fails_ends_the_setup_with_the_words_of_its_command_and_is_done_again(
    machine, monkeypatch
):
    def run(command):
        if "--editable" in command:
            raise SetupError("no network")
        done(command)

    done = environment._run
    monkeypatch.setattr(environment, "_run", run)
    with pytest.raises(SetupError, match="no network"):
        main("demo")

    monkeypatch.setattr(environment, "_run", done)
    machine.clear()
    main("demo")
    assert packages(machine)


def test_where_uv_is_not_to_be_had_pip_does_it(machine, tmp_path, monkeypatch, capsys):
    def run(command):
        if str(command[-1]).endswith("uv.txt"):
            raise SetupError("no such platform")
        done(command)

    done = environment._run
    monkeypatch.setattr(environment, "_run", run)

    main("demo")

    assert [command[1:3] for command in machine if "--editable" in command] == [["-m", "pip"]]
    assert "uv is not to be had here" in capsys.readouterr().out
    plain = (tmp_path / ".venv" / "constraints.txt").read_text()  # pip takes no hashes beside our own package
    assert packages(machine)[-1][1:3] == ["--constraint", ".venv/constraints.txt"]
    assert "--hash" not in plain
    assert "\\" not in plain
    assert plain.count("==") == (ROOT / "requirements.lock").read_text().count("==")


def test_uv_itself_is_the_one_of_the_lock_with_its_hashes(machine, tmp_path):
    main("demo")

    first, *hashes = (tmp_path / ".venv" / "uv.txt").read_text().split(" \\\n")
    assert first.startswith("uv==")
    assert hashes
    assert all(hash_.startswith("    --hash=sha256:") for hash_ in hashes)


def test_an_environment_that_was_broken_off_before_it_had_pip_is_made_again(machine, tmp_path, monkeypatch):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    (tmp_path / ".venv" / ".ready-dev").touch()
    monkeypatch.setattr(environment, "_works", WORKS)

    main("demo")

    assert [sys.executable, "-m", "venv", ".venv"] in machine
    assert not (tmp_path / ".venv" / ".ready-dev").exists()


def test_a_uv_of_which_only_a_part_was_written_is_installed_again(machine, tmp_path, monkeypatch):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / ".venv"], check=True)
    uv = tmp_path / ".venv" / "bin" / "uv"
    uv.write_bytes(b"\x7fELF")
    uv.chmod(0o755)
    monkeypatch.setattr(environment, "_works", WORKS)

    main("demo")

    assert any(command[-1] == ".venv/uv.txt" for command in machine)
    assert not any(command[1:3] == ["-m", "venv"] for command in machine)


def test_a_package_whose_installation_was_broken_off_is_no_package(machine, tmp_path):
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").touch()
    (packages / "whole-1.dist-info" / "INSTALLER").touch()

    main("demo")

    assert [folder.name for folder in packages.iterdir()] == ["whole-1.dist-info"]


def test_of_two_at_once_the_second_waits(machine, tmp_path, monkeypatch):
    def look(_board):
        with (tmp_path / "requirements.lock").open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (tmp_path / ".venv").mkdir()

    monkeypatch.setattr(environment, "_environment", look)
    main("demo")

    with (tmp_path / "requirements.lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("version", [(3, 10, 9), (3, 14, 0)])
def test_another_python_is_refused_with_the_way_out(monkeypatch, version):
    monkeypatch.setattr(environment.sys, "version_info", version)

    with pytest.raises(
        SetupError, match=rf"found 3\.{version[1]}\. Name another one: make PYTHON=python3.12"
    ):
        main("demo")


def test_a_failed_command_is_shown_with_its_last_lines():
    with pytest.raises(SetupError, match=r"(?s)failed with exit status 3:.*the last word"):
        environment._run([sys.executable, "-c", "print('the last word'); raise SystemExit(3)"])


def test_it_runs_on_a_bare_python():
    program = "import runpy, sys; sys.argv = ['environment.py']; runpy.run_path('devstack/setup/environment.py', run_name='__main__')"
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (answer.returncode, answer.stderr) == (1, "usage: environment.py demo|dev|test\n")


def test_ctrl_c_is_answered_in_a_line():
    program = """
import runpy, sys
class Interrupted:
    def __getitem__(self, _): raise KeyboardInterrupt
sys.version_info, sys.argv = Interrupted(), ["environment.py", "demo"]
runpy.run_path("devstack/setup/environment.py", run_name="__main__")
"""
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (answer.returncode, answer.stderr) == (1, "\nstopped; the next make goes on\n")
