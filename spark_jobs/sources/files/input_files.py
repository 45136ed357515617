"""Files of an input folder, here or wherever fsspec reaches, and the quarantine for those that cannot be read."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from spark_jobs.errors import InputError
from spark_jobs.platform.source_options import STORAGE, check_secrets, positive

LAKE = {"abfs", "abfss", "az"}

LOCAL = {"file", "local"}
REASON = ".reason.json"


class FoundFile(NamedTuple):
    """`name` is the path as the file system has it, without a scheme."""

    name: str
    size: int


def packed(files: Iterable[FoundFile], size: int) -> list[list[FoundFile]]:
    """Files in their order, so many together as make up `size` bytes."""
    tasks: list[list[FoundFile]] = []
    filled = size
    for file in files:
        if filled >= size:
            tasks.append([])
            filled = 0
        tasks[-1].append(file)
        filled += file.size
    return tasks


class Folder:
    """A folder by its path or URL (abfss://container@account.dfs.core.windows.net/path).

    `storage` goes to the file system; a data lake's default is the identity, or AZURE_STORAGE_* variables. Raises
    InputError for a kind of URL that is unknown or not installed.
    """

    def __init__(self, url: str, storage: Mapping[str, Any] | None = None) -> None:
        self.url = mounted(url.rstrip("/") or "/")
        protocol = self.url.partition("://")[0] if "://" in self.url else "file"
        options = dict(storage or ({"anon": False} if protocol in LAKE else {}))
        try:
            self.system, self.root = url_to_fs(self.url, **options)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"'{url}' cannot be opened: {error}; accepted: a local folder, or abfss://container@account.dfs.core."
                "windows.net/path with `pip install tidemark[data-lake]`"
            ) from error
        self.is_local = protocol in LOCAL

    def find(self, ending: str) -> list[FoundFile]:
        """Files below the folder (or the file that it is) whose names end so, by name. Raises InputError where
        there is no such folder.
        """
        found: dict[str, Any] = self.system.find(self.root, detail=True)
        if not found and not self.system.exists(self.root):
            raise InputError(f"there is no folder '{self.url}'")
        return [
            FoundFile(name, int(info["size"]))
            for name, info in sorted(found.items())
            if name.endswith(ending)
        ]

    def read(self, name: str) -> memoryview:
        """The content; mapped, not read, where the file is local."""
        if not self.is_local:
            return memoryview(self.system.cat_file(name))
        with Path(name).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Writes a file below the folder, whole or not at all; folders are made as needed."""
        path = f"{self.root}/{name}"
        if not self.is_local:
            self.system.pipe_file(path, bytes(data))
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.replace(target)


def mounted(url: str) -> str:
    """Where Databricks shows its own files to programs: volumes and workspaces by their names, the rest below /dbfs."""
    if not url.startswith("dbfs:"):
        return url
    path = "/" + url.removeprefix("dbfs:").lstrip("/")
    return path if path.startswith(("/Volumes/", "/Workspace/")) else f"/dbfs{path}"


@dataclass(frozen=True)
class FileOptions:
    """The options that all sources of files have, parsed."""

    path: str
    quarantine: str | None
    storage: dict[str, Any]
    partition_bytes: int

    @classmethod
    def read(
        cls, options: Mapping[str, str], name: str, files: str, partition_bytes: int, **more: Any
    ) -> Self:
        """Raises InputError naming the one at fault. `partition_bytes` is the default; `more` are the fields of `cls`."""
        check_secrets(options)
        path, size = options.get("path"), options.get("partitionBytes") or str(partition_bytes)
        if not path:
            raise InputError(f'the source "{name}" needs a path: the folder of {files}')
        storage = json.loads(options.get(STORAGE) or "{}")
        return cls(path, options.get("quarantine") or None, storage, positive("partitionBytes", size), **more)

    def folder(self) -> Folder:
        return Folder(self.path, self.storage)

    def quarantined(self, url: str | None = None) -> Quarantine | None:
        """`url` is given where Spark opens the files. Raises InputError as Quarantine."""
        return Quarantine(self.quarantine, url or self.folder(), self.storage) if self.quarantine else None


class Quarantine:
    """Copies of files that cannot be read, each with the reason beside it; the same file again replaces itself.

    Raises InputError when it lies within the input: what is set aside would be read as input next time.
    """

    def __init__(self, url: str, source: Folder | str, storage: Mapping[str, Any] | None = None) -> None:
        """`source` is where the files are; a URL where Spark opens them."""
        self._folder = Folder(url, storage)
        self._root = source.rstrip("/") if isinstance(source, str) else source.root
        if isinstance(source, str):
            inside = f"{self._folder.url}/".startswith(f"{self._root}/")
        else:
            same = type(self._folder.system) is type(source.system)
            inside = same and f"{self._folder.root}/".startswith(f"{self._root}/")
        if inside:
            raise InputError(
                f"the quarantine '{url}' lies within the input '{self._root}', which would read it; name a folder"
                " elsewhere"
            )

    def take(self, name: str, data: bytes | memoryview, reason: str, **facts: Any) -> None:
        """Puts the file and its reason there. `facts` are written beside the reason."""
        place = name.removeprefix(self._root).lstrip("/") or name.rpartition("/")[2]
        self._folder.write(place, data)
        story = {"file": name, "reason": reason, **facts}
        self._folder.write(f"{place}{REASON}", json.dumps(story, indent=2, ensure_ascii=False).encode())
