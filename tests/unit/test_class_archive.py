"""The archive of Spark's classes, with the Java of this machine; instead of Spark's, a start of Java alone is kept."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from spark_jobs.errors import JobError
from spark_jobs.platform import class_archive
from spark_jobs.platform.java import ensure_java


def run(home, options=""):
    """What Java says to `java <options> -version`, with options written as in Spark's settings."""
    return subprocess.run(
        ["/bin/sh", "-c", f"'{home}/bin/java' {options} -version"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def home():
    return ensure_java()


@pytest.fixture(scope="module")
def small_archive(home, tmp_path_factory):
    file = tmp_path_factory.mktemp("archive") / "small.jsa"
    run(home, f"-XX:ArchiveClassesAtExit={file}")
    return file


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path, small_archive):
    """An empty cache folder, whose name has a space, and a training that takes no half minute."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setattr(class_archive, "_run_training", lambda file: shutil.copy(small_archive, file))
    return tmp_path / "a cache" / "tidemark" / "spark-classes"


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Puts a version of Spark in the place of the last one."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    jar = tmp_path / "spark" / "jars" / "spark.jar"
    jar.parent.mkdir(parents=True)

    def install(version):
        jar.write_bytes(b"1" * version)
        os.utime(jar, (0, 0))

    return install


def test_without_an_archive_java_is_told_nothing(home) -> None:
    assert class_archive.java_options(home) == ""


def test_what_was_built_is_found_and_java_uses_it(home, cache) -> None:
    built = class_archive.build(home)

    answer = run(home, f"{class_archive.java_options(home)} -Xlog:class+load")
    assert class_archive.find(home) == built
    assert list(cache.iterdir()) == [built]
    assert "shared objects file (top)" in answer.stdout


@pytest.mark.parametrize("setting", ["HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_DIST_CLASSPATH"])
def test_a_class_path_of_the_users_own_is_left_as_it_is(home, monkeypatch, setting) -> None:
    class_archive.build(home)
    monkeypatch.setenv(setting, "/jars")

    assert class_archive.java_options(home) == ""


def test_a_second_build_does_nothing(home, monkeypatch) -> None:
    first = class_archive.build(home)
    monkeypatch.setattr(class_archive, "_run_training", lambda file: pytest.fail("trained again"))

    assert class_archive.build(home) == first


def cut_off(archive):
    os.truncate(archive, archive.stat().st_size // 2)


def change_bytes(archive):
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 2)
        file.write(b"\xa5" * 4096)


def replace_by_text(archive):
    archive.write_bytes(b"x" * archive.stat().st_size)


def make_for_other_jars(archive):
    """Of a Java that was started with jars, which the one that is given this archive is not."""
    jar = archive.with_name("one.jar")
    shutil.make_archive(str(jar), "zip", Path(__file__).parent, Path(__file__).name)
    other = archive.with_name("other.jsa")
    run(ensure_java(), f'-XX:ArchiveClassesAtExit="{other}" -cp "{jar}.zip"')
    other.replace(archive.with_name(f"{archive.stem.partition('-')[0]}-{other.stat().st_size}.jsa"))


@pytest.mark.parametrize("damage", [cut_off, change_bytes, replace_by_text, make_for_other_jars])
def test_an_archive_that_is_damaged_or_does_not_fit_neither_stops_java_nor_makes_it_talk(
    home, damage
) -> None:
    built = class_archive.build(home)
    built.chmod(0o600)
    damage(built)

    answer = run(home, class_archive.java_options(home))

    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr.replace(", sharing", "") == run(home).stderr.replace(", sharing", "")


def test_an_archive_that_was_cut_off_is_built_again(home) -> None:
    built = class_archive.build(home)
    size = built.stat().st_size
    built.chmod(0o600)
    cut_off(built)

    assert class_archive.build(home).stat().st_size == size


def test_other_jars_need_another_archive_and_of_those_long_unused_few_are_kept(home, install, cache) -> None:
    built = []
    for version in range(5):
        install(version)
        assert class_archive.find(home) is None
        built.append(class_archive.build(home))
        os.utime(built[-1], (version, version))

    assert sorted(cache.iterdir()) == sorted(built[-3:])


def test_an_archive_in_use_outlives_newer_ones(home, install) -> None:
    install(1)
    used = class_archive.build(home)
    for version in range(2, 7):
        os.utime(used, (0, 0))
        install(1)
        class_archive.java_options(home)
        install(version)
        os.utime(class_archive.build(home), (1, 1))

    assert used.exists()


def test_what_a_killed_build_left_goes_and_what_another_one_writes_stays(home, cache) -> None:
    cache.mkdir(parents=True)
    for name, age in (("left.1.tmp", 2 * class_archive._ABANDONED), ("written.2.tmp", 0)):
        (cache / name).touch()
        os.utime(cache / name, (time.time() - age,) * 2)

    built = class_archive.build(home)

    assert sorted(cache.iterdir()) == sorted([built, cache / "written.2.tmp"])


def test_a_training_that_fails_leaves_nothing_and_its_last_words_are_told(home, cache, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parents[1]))
    monkeypatch.setattr(class_archive.sys, "executable", shutil.which("false"))

    with pytest.raises(
        JobError, match="no archive of Spark's classes: the session that was to write it failed"
    ):
        class_archive.build(home)
    assert list(cache.iterdir()) == []


def small_java(folder, script):
    """A Java program that is a shell script."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "java").chmod(0o700)
    return folder


def test_a_java_that_cannot_have_an_archive_is_named(tmp_path) -> None:
    java = small_java(tmp_path / "jre", "exit 1")

    with pytest.raises(JobError, match=rf"the Java in {java} has no archive of its own classes"):
        class_archive.build(java)


def test_a_java_without_an_archive_of_its_own_classes_makes_one(tmp_path) -> None:
    base = tmp_path / "classes.jsa"
    java = small_java(tmp_path / "jre", f"case $1 in -Xshare:dump) touch {base};; *) test -e {base};; esac")

    class_archive.build(java)

    assert base.exists()


@pytest.mark.parametrize(
    ("named", "folder"), [("/caches", "/caches"), ("", "/home/me/.cache"), ("relative", "/home/me/.cache")]
)
def test_the_archive_is_in_the_users_cache_folder(monkeypatch, named, folder) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    assert class_archive.folder({"XDG_CACHE_HOME": named}) == Path(folder, "tidemark", "spark-classes")
