"""`python -m examples NAME`: runs a scenario on a local stack of its own, and prints what came of it. Without a name: which there are."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tempfile
from pathlib import Path

from devstack.stack.supervisor import Stack

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/scene.py"))


async def run(name: str, output: Path) -> None:
    scene = importlib.import_module(f"examples.{name}.scene")
    async with Stack() as stack:
        settings = {**os.environ, **scene.prepare(stack), **stack.settings()}
        settings |= {"CONSUMER_FILE": str(HERE / name / "consumer.toml"), "PYTHONPATH": str(HERE.parent)}
        os.environ.update({key: value for key, value in settings.items() if key.startswith("IDENTITY_")})
        await asyncio.to_thread(scene.publish, settings)
        for words in (
            ("lint", settings["CONSUMER_FILE"]),
            ("consume", "--until", "latest"),
            ("dead-letters", "list"),
        ):
            print(f"$ tidemark {' '.join(words)}", flush=True)
            command = [sys.executable, "-m", "tidemark", *words]
            process = await asyncio.create_subprocess_exec(*command, cwd=output.parent, env=settings)
            if await process.wait():
                raise SystemExit(f"it ended with status {process.returncode}")
        for line in await asyncio.to_thread(scene.show, settings, output):
            print(line)


def main() -> None:
    if sys.argv[1:2] not in ([name] for name in names()):
        raise SystemExit(f"name one of: {', '.join(names())}")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        output.mkdir()
        asyncio.run(run(sys.argv[1], output))


if __name__ == "__main__":
    main()
