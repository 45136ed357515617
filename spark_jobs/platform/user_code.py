"""The code of a transform: where it is found, and as a digest, whether it is still the code that a run was made with."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import PurePath

from consumer.definition.model import digest_of

_OURS = {"tidemark", "consumer", "scaling", "spark_jobs"}
"""Imported by every transform. In a clone they are beside it; another version of them is no change of the transform's code."""

OWN_MODULES = "TIDEMARK_OWN_MODULES"
"""Among the settings of a job and its tasks: the folder of the app, where its transform is."""


def find_own_modules(settings: Mapping[str, str]) -> None:
    """Lets the settings name modules beside them, as for the consumer; in each task, too, whose working directory is another one."""
    if (folder := settings.get(OWN_MODULES)) and folder not in sys.path:
        sys.path.insert(0, folder)


def code_digest(transform: str) -> str:
    """Of the source of the module in `module:function`, and of what it imports of its own package or, if it is in none, of its
    folder. '' where a source cannot be read.
    """
    root = transform.partition(":")[0]
    folder = _folder_of_top(root)
    sources: dict[str, str] = {}
    ahead = [root]
    while ahead:
        name = ahead.pop()
        if name in sources or (name != root and not _is_own(name, root, folder)):
            continue
        if (read := _source_of(name)) is None:
            continue
        spec, sources[name] = read
        ahead += _imports(spec, sources[name])
        ahead.append(name.rpartition(".")[0] or name)  # a package is imported before what is in it
    return digest_of(sorted(sources.items())) if root in sources else ""


def _is_own(name: str, root: str, folder: PurePath | None) -> bool:
    top = _top(name)
    if top == _top(root):
        return True
    # What is installed was not written for this transform, although it is in the folder of an installed one.
    installed = folder is None or folder.name in {"site-packages", "dist-packages"}
    return not installed and top not in _OURS and _folder_of_top(top) == folder


def _top(name: str) -> str:
    return name.partition(".")[0]


def _folder_of_top(name: str) -> PurePath | None:
    spec = _spec_of(_top(name))
    if spec is None or not (spec.has_location and spec.origin):
        return None
    file = PurePath(spec.origin)
    return file.parent.parent if spec.submodule_search_locations else file.parent


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except Exception:  # a parent package is imported, and may raise anything
        return None


def _source_of(name: str) -> tuple[ModuleSpec, str] | None:
    spec = _spec_of(name)
    get_source = getattr(
        spec and spec.loader, "get_source", None
    )  # of a file, or of an archive of --py-files
    try:
        source = get_source(name) if get_source else None
    except Exception:  # unreadable, or no UTF-8
        return None
    return (spec, source) if spec is not None and source is not None else None


def _imports(spec: ModuleSpec, source: str) -> Iterator[str]:
    """The modules that a source names in its imports. A name of `from a import b` may be a module, or be in one."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            try:
                base = resolve_name(module, spec.parent)
            except ImportError:
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
