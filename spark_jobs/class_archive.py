"""An archive of the classes that Spark's Java loads: without one, loading and checking them is half of a start.

The first session leaves one as it ends, others begin with it. Java takes none that is not of the same Java and jars, and
starts without; where a jar or the Java has changed, another file is made. As Java leaves what it has met, a session needs
not find all of its classes there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

FOLDER = "TIDEMARK_SPARK_CACHE"
"""Variable that names the folder of archives; empty: none are made, none are used."""

_UNUSED_S = 30 * 86400.0  # an archive has 170 MB

# Java archives no class path with folders in it, and these put some there.
_FOLDERS_OF_CLASSES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")

# Where people tell Java what they want of its archives.
_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")


def class_archive(home: Path, spark: Path, environment: Mapping[str, str]) -> Path | None:
    """The archive for the Java in `home` and the Spark in `spark`, which need not be there yet; None where there can be
    none.
    """
    given = environment.get(FOLDER)
    folder = (
        Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "tidemark") if given is None else Path(given)
    )
    if given == "" or any(map(environment.get, _FOLDERS_OF_CLASSES)):
        return None
    if any(word in environment.get(name, "") for name in _OPTIONS for word in ("-Xshare", "Archive")):
        return None
    try:
        if any((spark / "conf").glob("*")) or not (home / "lib" / "server" / "classes.jsa").exists():
            return None  # the archive stands on the one that Java comes with
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / f"spark-{_key(home, spark / 'jars')}.jsa"
        if os.access(folder, os.W_OK):
            _clean(folder, archive)
        elif not archive.exists():
            return None
    except (OSError, RuntimeError):  # a full or foreign disk, no home
        return None
    return archive


def _key(home: Path, jars: Path) -> str:
    """Another one for another Java and for other jars."""
    seen = hashlib.sha256(f"{home.resolve()}\n{jars.resolve()}".encode())
    for file in (home / "lib" / "modules", *sorted(jars.iterdir())):
        stat = file.stat()
        seen.update(f"\n{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return seen.hexdigest()[:16]


def _clean(folder: Path, used: Path) -> None:
    """Takes away what no session has used for long: of Javas that are gone, of sessions that were killed."""
    with contextlib.suppress(OSError):
        os.utime(used)
    for file in folder.glob("spark-*.jsa*"):
        with contextlib.suppress(OSError):  # another session may be as quick
            if file.stat().st_mtime < time.time() - _UNUSED_S:
                file.unlink()
