"""`python -m examples NAME...`: runs scenarios on a local stack of their own, and prints what came of them; `all` runs each. Without a
name: which there are. Exit status 1 where something is not as it must be.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
import traceback
from pathlib import Path

from devstack.stack.supervisor import Stack, forget_settings
from examples.stage import Stage

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/scene.py"))


async def run(chosen: list[str]) -> bool:
    """Whether all of them are as they must be."""
    passed = True
    forget_settings()
    async with Stack() as stack:
        for name in chosen:
            if len(chosen) > 1:
                print(f"== {name}", flush=True)
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    scene = importlib.import_module(f"examples.{name}.scene")
                    for line in await scene.play(Stage(name, stack, Path(folder))):
                        print(line)
                    print(f"as it must be, after {time.monotonic() - began:.0f} s", flush=True)
                except ModuleNotFoundError as error:
                    passed = False
                    print(f"{error.name} is not installed: `make setup` installs what the examples need")
                except Exception:
                    passed = False
                    traceback.print_exc()
                    print(f"{name} is not as it must be", flush=True)
    return passed


def main() -> None:
    chosen = names() if sys.argv[1:] == ["all"] else sys.argv[1:]
    if not chosen or not set(chosen) <= set(names()):
        raise SystemExit(f"name one of: {', '.join(names())}; or all")
    try:
        passed = asyncio.run(run(chosen))
    except KeyboardInterrupt:
        print("stopped; its local stack has ended", file=sys.stderr)
        raise SystemExit(130) from None
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
