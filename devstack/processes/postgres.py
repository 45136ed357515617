"""Finds PostgreSQL's server programs, where Debian's packages and others put them."""

from __future__ import annotations

import shutil
from pathlib import Path


def server_programs() -> Path | None:
    """The folder with `initdb` and `postgres`, of the newest version there is; None without one."""
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if versions:
        return max(versions, key=lambda folder: int(folder.parent.name))
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None
