"""The order in which files get to the disk and take their names: what a crash of the machine may not turn round."""

import os
from pathlib import Path

import pytest


def record_disk_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """("fsync", a file's or folder's name), ("rename", the name before), as they happen; each is carried out, too."""
    happened: list[tuple[str, str]] = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def synced(file: int) -> None:
        happened.append(("fsync", Path(f"/proc/self/fd/{file}").readlink().name))
        fsync(file)

    def replaced(path: Path, target: Path) -> Path:
        happened.append(("rename", path.name))
        return replace(path, target)

    def renamed(path: Path, target: Path) -> Path:
        happened.append(("rename", path.name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(Path, "rename", renamed)
    return happened
