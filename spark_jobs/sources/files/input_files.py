"""Files of an input folder, here or wherever fsspec reaches, and the quarantine for those that cannot be read."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from spark_jobs.platform.source_options import STORAGE, check_secrets, positive
from spark_jobs.sources.files.path_times import FileFilter, Look
from spark_jobs.tables.file_systems import file_system, protocol_of
from tidemark.analysis.errors import InputError

_WINDOW = 1 << 18  # bytes looked through at a time for a mark
_UNPACKED = 8  # times its size, about, is what JSON and CSV in gzip are

LOCAL = {"file", "local"}
REASON = ".reason.json"


class FoundFile(NamedTuple):
    """`name` is the path as the file system has it, without a scheme. Of a file that several tasks read, each reads the
    records that begin from byte `begin` on and before `end`.
    """

    name: str
    size: int
    begin: int = 0
    end: int | None = None

    @property
    def bytes_read(self) -> int:
        return (self.size if self.end is None else self.end) - self.begin

    @property
    def weight(self) -> int:
        """The bytes that a task has to go through, about."""
        return self.bytes_read * (_UNPACKED if self.name.lower().endswith(".gz") else 1)


def packed(
    files: Iterable[FoundFile], size: int, splits: Callable[[str], bool] = lambda _name: False
) -> list[list[FoundFile]]:
    """Files in their order, so many together as make up `size` bytes, unpacked; those of twice that and more, whose name
    `splits`, in pieces. What has that size alone is a task of its own.
    """
    tasks: list[list[FoundFile]] = []
    filled = size
    for file in (piece for found_file in files for piece in _pieces(found_file, size, splits)):
        if filled >= size or file.weight >= size:
            tasks.append([])
            filled = 0
        tasks[-1].append(file)
        filled += file.weight
    return tasks


def _pieces(file: FoundFile, size: int, splits: Callable[[str], bool]) -> Iterator[FoundFile]:
    count = file.size // size
    if count < 2 or not splits(file.name):
        yield file
        return
    for number in range(count):
        yield file._replace(begin=file.size * number // count, end=file.size * (number + 1) // count)


class Folder:
    """A folder by its path or URL (abfss://container@account.dfs.core.windows.net/path).

    `storage` goes to the file system; a data lake's default is the identity, or AZURE_STORAGE_* variables. Raises
    InputError for a kind of URL that is unknown or not installed.
    """

    def __init__(self, url: str, storage: Mapping[str, Any] | None = None) -> None:
        self.url = mounted(url.rstrip("/") or "/")
        self.system, self.root = file_system(self.url, storage)
        self.is_local = protocol_of(self.url) in LOCAL

    def find(self, ending: str, look: Look | None = None) -> list[FoundFile]:
        """Files below the folder (or the file that it is) whose names end so, by name; `look` says which folders to list,
        and which files to take. Raises InputError where there is no such folder.
        """
        if look is not None:
            try:
                return sorted(self._walk(self.root, ending, look))
            except FileNotFoundError as error:
                raise InputError(
                    f"there is no folder '{self.url}', or it was changed while it was listed: {error}"
                ) from None
        infos: dict[str, Any] = self.system.find(self.root, detail=True)
        if not infos and not self.system.exists(self.root):
            raise InputError(f"there is no folder '{self.url}'")
        return _files(infos, ending)

    def first(self, ending: str, look: Look = lambda _path: None) -> FoundFile | None:
        """Any of the files, found without listing all. Raises InputError as `find`."""
        try:
            # Nothing is listed whole, however much of it is wanted.
            return next(self._walk(self.root, ending, lambda path: look(path) and None), None)
        except FileNotFoundError:
            raise InputError(f"there is no folder '{self.url}'") from None

    def _walk(self, folder: str, ending: str, look: Look) -> Iterator[FoundFile]:
        for info in sorted(self.system.ls(folder, detail=True), key=lambda info: str(info["name"])):
            name = str(info["name"]).rstrip("/")
            if name == folder and info["type"] == "directory":
                continue  # some stores list a folder's own mark
            wanted = look(name)
            if wanted is False:
                continue
            if info["type"] != "directory":
                yield from _files({name: info}, ending)
            elif wanted:
                yield from _files(self.system.find(name, detail=True), ending)
            else:
                yield from self._walk(name, ending, look)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> memoryview:
        """The content, or some bytes of it; mapped, not read, where the file is local."""
        if not self.is_local:
            return memoryview(self.system.cat_file(name, start=begin or None, end=end))
        with Path(name).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[begin:end]

    def behind(self, file: FoundFile, mark: bytes, at: int) -> int:
        """Where the first mark at byte `at` or later ends; the file's end where there is none."""
        while at < file.size:
            window = bytes(self.read(file.name, at, at + _WINDOW))
            place = window.find(mark)
            if place >= 0:
                return at + place + len(mark)
            if len(window) < _WINDOW:
                break
            at += _WINDOW - len(mark) + 1
        return file.size

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


def _files(infos: Mapping[str, Any], ending: str) -> list[FoundFile]:
    return [
        FoundFile(name, int(info["size"])) for name, info in sorted(infos.items()) if name.endswith(ending)
    ]


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
    wanted: FileFilter

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
        wanted = _wanted(options.get("wanted") or "{}")
        quarantine, at_once = options.get("quarantine") or None, positive("partitionBytes", size)
        return cls(path, quarantine, storage, at_once, wanted, **more)

    def folder(self) -> Folder:
        return Folder(self.path, self.storage)

    def quarantined(self, url: str | None = None) -> Quarantine | None:
        """`url` is given where Spark opens the files. Raises InputError as Quarantine."""
        return Quarantine(self.quarantine, url or self.folder(), self.storage) if self.quarantine else None


def _wanted(text: str) -> FileFilter:
    try:
        return msgspec.json.decode(text, type=FileFilter)
    except msgspec.DecodeError as error:
        raise InputError(
            f"the option wanted is '{text[:200]}': {error}; accepted is a JSON object with since, until, hub,"
            " partitions and lag"
        ) from None


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

    def take(
        self, name: str, data: bytes | memoryview, reason: str, *, piece: str = "", **facts: Any
    ) -> None:
        """Puts the file and its reason there; a `piece` of it gets a name of its own. `facts` are written beside the reason."""
        place = name.removeprefix(self._root).lstrip("/") or name.rpartition("/")[2]
        if piece:
            stem, dot, ending = place.rpartition(".")
            place = f"{stem}.{piece}{dot}{ending}"
        self._folder.write(place, data)
        description = {"file": name, "reason": reason, **facts}
        self._folder.write(f"{place}{REASON}", json.dumps(description, indent=2, ensure_ascii=False).encode())
