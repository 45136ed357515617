"""Spark's classes as Java keeps them in memory, saved in a file: with it a session starts in half the time.

The file is an archive for class data sharing: `build` runs a short session whose Java machine writes it
(`-XX:ArchiveClassesAtExit`), and later ones map it (`-XX:SharedArchiveFile`). It fits one Java and one set of jars, by
which it is named. Java checks both again, and each part of the file, and does without an archive that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.errors import JobError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

BUILD_WITHIN = 600.0  # seconds; it takes 30 on two free cores

_KEPT = 3  # archives of about 180 MB: an environment or two, and the one before an update
_ABANDONED = 3600.0  # seconds after which a file that a build was writing is nobody's
# Of an archive that does not fit Java would tell on standard output, where a job's results are.
_QUIET = "-Xlog:cds*=off"
# Each of these changes Spark's class path, and a Java with another class path does without the archive.
_OWN_CLASS_PATH = (
    "HADOOP_CONF_DIR",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_PREPEND_CLASSES",
    "YARN_CONF_DIR",
)


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the archives are: below the user's cache folder. Raises RuntimeError where there is no home."""
    named = Path(environment.get("XDG_CACHE_HOME", ""))
    cache = named if named.is_absolute() else Path.home() / ".cache"
    return cache / "tidemark" / "spark-classes"


def java_options(home: Path) -> str:
    """What a session's Java is told to use the archive that fits it; nothing where there is none."""
    found = find(home)
    if found is None or any(os.environ.get(name) for name in _OWN_CLASS_PATH):
        return ""
    if any(
        character in f"{found}{_spark_home()}" for character in ':"\\'
    ):  # a path that options cannot carry
        return ""
    with contextlib.suppress(OSError):
        os.utime(found)  # for `_remove_old`: it is in use
    return f'{_class_path()} "-XX:SharedArchiveFile={found}" -Xshare:auto -XX:+VerifySharedSpaces {_QUIET}'


def find(home: Path) -> Path | None:
    """The whole archive of this Java and these jars.

    One that was cut off is passed over: Java 17 does not look at the size and dies when it comes to the end.
    """
    with contextlib.suppress(OSError, RuntimeError):
        for file in folder().glob(f"{_key(home)}-*.jsa"):
            if file.stat().st_size == int(file.stem.rpartition("-")[2]):
                return file
    return None


def build(home: Path) -> Path:
    """The archive for this Java, made if it is not there, which takes half a minute; archives long unused go.

    Two at once do no harm. Raises JobError where this Java or this machine cannot have one.
    """
    found = find(home)
    if found is not None:
        return found
    try:
        target = folder()
        target.mkdir(parents=True, exist_ok=True)
        _need_base(home)
        scratch = target / f"{_key(home)}.{os.getpid()}.tmp"
        try:
            _run_training(scratch)
            archive = target / f"{_key(home)}-{scratch.stat().st_size}.jsa"
            scratch.replace(archive)
        finally:
            scratch.unlink(missing_ok=True)
        _remove_old(target, archive)
    except (OSError, RuntimeError) as error:
        raise JobError(f"no archive of Spark's classes: {error}") from None
    return archive


def _key(home: Path) -> str:
    """Names a Java and Spark's jars: where they are, and what tells one version from another."""
    java = (home / "bin" / "java", home / "release", home / "lib" / "server" / "libjvm.so")
    jars = sorted((_spark_home() / "jars").glob("*.jar"))
    digest = hashlib.sha256()
    for file in (*java, *jars):
        if file.exists():
            state = file.stat()
            digest.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _spark_home() -> Path:
    """As Spark's own scripts find it, without the second that importing pyspark takes."""
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise RuntimeError("pyspark is not installed")
    return Path(package.origin).parent


def _class_path() -> str:
    """Spark's class path without its first jar, which its scripts name twice: Java 21 then takes no archive."""
    return f'-cp "{_spark_home() / "jars" / "*"}"'


def _need_base(home: Path) -> None:
    """Sees to the archive of Java's own classes, on which others build and which small Javas come without.

    Raises JobError where there is none and none can be made.
    """
    if _java(home, "-Xshare:on", "-version") == 0:
        return
    if _java(home, "-Xshare:dump") != 0 or _java(home, "-Xshare:on", "-version") != 0:
        raise JobError(
            f"the Java in {home} has no archive of its own classes, and 'java -Xshare:dump' could not make one there"
        )


def _java(home: Path, *options: str) -> int:
    answer = subprocess.run(  # noqa: S603 - the user's own Java
        [home / "bin" / "java", *options], capture_output=True, timeout=BUILD_WITHIN, check=False
    )
    return answer.returncode


def _run_training(archive: Path) -> None:
    """Raises JobError with the last words of the session that wrote no archive."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            answer = subprocess.run(  # noqa: S603 - this module
                [sys.executable, "-m", "spark_jobs.platform.class_archive", archive, scratch],
                capture_output=True,
                text=True,
                timeout=BUILD_WITHIN,
                check=False,
                # Where another build has put its archive meanwhile: one on top of another is refused.
                env={**os.environ, "XDG_CACHE_HOME": scratch},
            )
        except subprocess.TimeoutExpired:
            raise JobError(f"no archive of Spark's classes within {BUILD_WITHIN:g} s") from None
    if answer.returncode != 0 or not archive.exists():
        tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-5:])
        raise JobError(f"no archive of Spark's classes: the session that was to write it failed:\n{tail}")


def _remove_old(target: Path, newest: Path) -> None:
    others = sorted(
        (file for file in target.glob("*.jsa") if file != newest), key=lambda file: -file.stat().st_mtime
    )
    twins = [file for file in others if file.stem.partition("-")[0] == newest.stem.partition("-")[0]]
    abandoned = [
        file for file in target.glob("*.tmp") if file.stat().st_mtime < time.time() - _ABANDONED
    ]  # by a build that was killed
    for file in {*twins, *others[_KEPT - 1 :], *abandoned}:
        file.unlink(missing_ok=True)


def _train(archive: str, scratch: str) -> int:
    """A session that does a little of all that jobs do; its Java writes the archive when it ends. Its exit status."""
    from spark_jobs.platform.session import prepared_session  # noqa: PLC0415 - which takes its options from here

    options = f'{_class_path()} -XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={archive}" {_QUIET}'
    extra = {"spark.driver.defaultJavaOptions": options}
    spark = prepared_session("class archive", cores=2, memory="1g", extra=extra)
    _exercise(spark, scratch)
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - nothing else knows Java's process
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which it knows that it is not needed any more
    status: int = gateway.proc.wait()
    return status


def _exercise(spark: SparkSession, scratch: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - its usual name; only where it is needed

    minute = F.window("at", "1 minute")
    spark.range(1000).select(
        "id",
        (F.col("id") % 7).alias("key"),
        F.timestamp_seconds("id").alias("at"),
        F.col("id").cast("string").alias("text"),
    ).repartition(2).write.partitionBy("key").parquet(f"{scratch}/table")
    table = spark.read.parquet(f"{scratch}/table")
    counts = table.groupBy(minute, "key").agg(
        F.count("*"), F.sum("id").alias("sum"), F.percentile_approx("id", 0.5), F.collect_list("text")
    )
    table.join(counts, "key", "left").orderBy("at").limit(10).toPandas()
    table.mapInArrow(_unchanged, table.schema).count()
    spark.createDataFrame([("a", 1)], "name string, number int").write.json(f"{scratch}/rows")
    spark.readStream.schema(table.schema).parquet(f"{scratch}/table").withWatermark("at", "1 minute").groupBy(
        minute
    ).count().writeStream.option("checkpointLocation", f"{scratch}/checkpoint").trigger(
        availableNow=True
    ).start(f"{scratch}/streamed", format="parquet").awaitTermination()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    sys.exit(_train(*sys.argv[1:]))
