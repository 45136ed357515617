"""A PostgreSQL server of the tests' own, from the system's packages: its data, and its only socket, in a temporary
folder.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import psycopg
import pytest

START_WITHIN = 30.0


def server_programs():
    """The folder with `initdb` and `postgres`, of the newest version there is, where Debian's packages and others put
    it; None without one.
    """
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if versions:
        return max(versions, key=lambda folder: int(folder.parent.name))
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def as_unprivileged():
    """How a command is started as a user who may run the server: it refuses root."""
    if os.geteuid() != 0:
        return ["setpriv", "--pdeathsig", "QUIT"]
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig", "QUIT"]


@contextlib.contextmanager
def running_server():
    """URL of a fresh server. Where there is none to start the test is skipped, but on CI it fails."""
    programs = server_programs()
    if programs is None:
        message = "no PostgreSQL server: install Debian's package postgresql (`make test` does, where it may)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    folder = Path(tempfile.mkdtemp(prefix="tidemark-pg-"))
    try:
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        with _server(programs, folder) as url:
            yield url
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _server(programs, folder):
    data = folder / "data"
    subprocess.run(
        [
            *as_unprivileged(),
            programs / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "--auth=trust",
            "-E",
            "UTF8",
            "-N",
        ],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "deadlock_timeout=100ms"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*as_unprivileged(), programs / "postgres", "-D", data, "-k", folder, *options],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        _wait_until_it_answers(server, folder)
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        server.send_signal(3)  # SIGQUIT: at once
        server.wait()


def _wait_until_it_answers(server, folder):
    deadline = time.monotonic() + START_WITHIN
    while True:
        try:
            psycopg.connect(f"host={folder} user=postgres dbname=postgres").close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text()) from None
            time.sleep(0.05)
        else:
            return


def new_database(server_url):
    """URL of a new, empty database on the server."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return server_url.replace("/postgres?", f"/{name}?")
