"""An archive of the classes that Spark's Java loads: without one, loading and checking them is half of a start.

`python -m spark_jobs.platform.class_training` makes it, beside the jars it is of, so that it goes with them. Java takes none that is
not of the same Java and jars, and starts without. A session needs not find all of its classes there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

# Java archives no class path with folders in it, and these put some there.
_FOLDERS_OF_CLASSES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")

# Where people tell Java what they want of its archives.
_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")


def archive_options(home: Path, spark: Path, environment: Mapping[str, str]) -> str:
    """What the Java in `home` is told, to begin the Spark in `spark` with the archive; nothing where there is none."""
    if any(map(environment.get, _FOLDERS_OF_CLASSES)) or any((spark / "conf").glob("*")):
        return ""
    if any(word in environment.get(name, "") for name in _OPTIONS for word in ("-Xshare", "Archive")):
        return ""
    archive = archive_of(home, spark)
    # Of an archive that does not fit Java would tell on standard output, where a job's results are.
    return (
        f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off' if archive.exists() else ""
    )


def archive_of(home: Path, spark: Path) -> Path:
    """Where the archive of this Java and these jars is, or would be."""
    seen = hashlib.sha256(f"{home.resolve()}\n{spark.resolve()}".encode())
    for file in (home / "lib" / "modules", *sorted((spark / "jars").glob("*.jar"))):
        if file.exists():
            stat = file.stat()
            seen.update(f"\n{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return spark / f"classes-{seen.hexdigest()[:16]}.jsa"
