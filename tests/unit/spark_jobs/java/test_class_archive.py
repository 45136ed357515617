"""Where the archive of Java's classes lies, what Java is told of it, and for whom there is none."""

import pytest

from spark_jobs.errors import JobError
from spark_jobs.java.class_archive import archive_of, archive_options
from spark_jobs.platform import class_training


@pytest.fixture
def home(tmp_path):
    """Of a Java that has an archive of its own classes."""
    server = tmp_path / "java" / "lib" / "server"
    server.mkdir(parents=True)
    (server / "classes.jsa").touch()
    (server.parent / "modules").write_text("17")
    return tmp_path / "java"


@pytest.fixture
def spark(tmp_path, monkeypatch):
    """Spark's folder; a session there leaves an archive, unless it says why not."""
    folder = tmp_path / "it's here" / "spark"
    (folder / "jars").mkdir(parents=True)
    (folder / "jars" / "core.jar").touch()
    monkeypatch.setattr(class_training, "_find_spark_home", lambda: str(folder))
    monkeypatch.setattr(
        class_training, "_leave_classes", lambda archive, _scratch: archive.write_text("classes")
    )
    return folder


def test_another_java_and_other_jars_have_another_archive(home, spark):
    first = archive_of(home, spark)
    again = archive_of(home, spark)
    (spark / "jars" / "new.jar").touch()
    with_a_jar = archive_of(home, spark)
    (home / "lib" / "modules").write_text("17.0.1")
    of_another_java = archive_of(home, spark)

    assert first == again
    assert len({first, with_a_jar, of_another_java}) == 3


def test_java_is_told_of_an_archive_that_is_there(home, spark):
    without = archive_options(home, spark, {})
    archive = class_training.make_archive(home)

    assert without == ""
    assert archive.read_text() == "classes"
    assert archive_options(home, spark, {}) == (
        f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    )


@pytest.mark.parametrize(
    "given",
    [
        {"HADOOP_CONF_DIR": "/etc/hadoop"},
        {"JAVA_TOOL_OPTIONS": "-Xshare:off"},
        {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/mine"},
    ],
)
def test_nothing_is_said_where_java_would_refuse_it_or_the_user_says_something(home, spark, given):
    class_training.make_archive(home)

    assert archive_options(home, spark, given) == ""


def test_nothing_is_said_to_a_spark_with_a_configuration(home, spark):
    class_training.make_archive(home)
    (spark / "conf").mkdir()
    (spark / "conf" / "spark-defaults.conf").touch()

    assert archive_options(home, spark, {}) == ""


def test_it_is_made_once_and_those_of_other_jars_go(home, spark, monkeypatch):
    first = class_training.make_archive(home)
    (spark / "jars" / "core.jar").write_text("new")
    second = class_training.make_archive(home)
    monkeypatch.setattr(class_training, "_leave_classes", None)

    assert class_training.make_archive(home) == second != first
    assert set(spark.iterdir()) == {second, spark / "jars"}


def test_a_session_that_leaves_none_leaves_no_file(home, spark, monkeypatch):
    monkeypatch.setattr(class_training, "_leave_classes", lambda _archive, _scratch: None)

    with pytest.raises(JobError, match=r"No such file or directory: .*classes\.jsa"):
        class_training.make_archive(home)
    assert list(spark.iterdir()) == [spark / "jars"]


def test_the_command_says_where_it_is_or_why_there_is_none(home, spark, monkeypatch, capsys):
    monkeypatch.setattr(class_training, "ensure_java", lambda: home)
    class_training.main()

    assert capsys.readouterr().out.startswith(f"archive of Spark's classes: {spark}/classes-")

    (home / "lib" / "modules").write_text("17.0.1")
    (home / "lib" / "server" / "classes.jsa").unlink()
    with pytest.raises(SystemExit, match=f"error: the Java in {home} brings no archive of its own classes"):
        class_training.main()


def test_where_spark_is_not_started_here_there_is_none(home, spark, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")

    with pytest.raises(JobError, match="a session of Spark that is not started here"):
        class_training.make_archive(home)
