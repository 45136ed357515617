"""Where the archive of Java's classes lies, and for whom there is none."""

import os

import pytest

from spark_jobs.class_archive import class_archive


@pytest.fixture
def home(tmp_path):
    """Of a Java that has an archive of its own classes."""
    server = tmp_path / "java" / "lib" / "server"
    server.mkdir(parents=True)
    (server / "classes.jsa").touch()
    (server.parent / "modules").write_text("17")
    return tmp_path / "java"


@pytest.fixture
def spark(tmp_path):
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "core.jar").touch()
    return tmp_path / "spark"


@pytest.fixture
def place(tmp_path):
    return {"TIDEMARK_SPARK_CACHE": str(tmp_path / "cache" / "deep")}


def test_another_java_and_other_jars_have_another_archive(home, spark, place, tmp_path):
    first = class_archive(home, spark, place)
    again = class_archive(home, spark, place)
    (spark / "jars" / "new.jar").touch()
    with_a_jar = class_archive(home, spark, place)
    (home / "lib" / "modules").write_text("17.0.1")
    of_another_java = class_archive(home, spark, place)

    assert first == again
    assert first.parent == tmp_path / "cache" / "deep"
    assert len({first, with_a_jar, of_another_java}) == 3


def test_it_lies_with_the_users_other_caches(home, spark, tmp_path):
    assert class_archive(home, spark, {"XDG_CACHE_HOME": str(tmp_path)}).parent == tmp_path / "tidemark"


@pytest.mark.parametrize(
    "given",
    [
        {"TIDEMARK_SPARK_CACHE": ""},
        {"HADOOP_CONF_DIR": "/etc/hadoop"},
        {"JAVA_TOOL_OPTIONS": "-Xshare:off"},
        {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/mine"},
        {"TIDEMARK_SPARK_CACHE": "/proc/no/such"},
    ],
)
def test_there_is_none_where_java_would_refuse_it_or_the_user_does_not_want_it(home, spark, place, given):
    assert class_archive(home, spark, {**place, **given}) is None


def test_there_is_none_for_a_java_without_one_or_a_spark_with_a_configuration(home, spark, place):
    (home / "lib" / "server" / "classes.jsa").unlink()
    without = class_archive(home, spark, place)
    (home / "lib" / "server" / "classes.jsa").touch()
    (spark / "conf").mkdir()
    (spark / "conf" / "spark-defaults.conf").touch()

    assert (without, class_archive(home, spark, place)) == (None, None)


def test_a_folder_that_only_others_may_write_to_is_read(home, spark, place, monkeypatch):
    archive = class_archive(home, spark, place)
    monkeypatch.setattr(os, "access", lambda _folder, _mode: False)

    assert class_archive(home, spark, place) is None
    archive.touch()
    assert class_archive(home, spark, place) == archive


def test_archives_that_nobody_used_for_a_month_go(home, spark, place):
    used = class_archive(home, spark, place)
    old, killed, young = (used.parent / name for name in ("spark-1.jsa", "spark-2.jsa.99", "spark-3.jsa"))
    for file in (used, old, killed, young):
        file.touch()
    for file in (used, old, killed):
        os.utime(file, (0, 0))

    class_archive(home, spark, place)

    assert {used, young} == set(used.parent.iterdir())
