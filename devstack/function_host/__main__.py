"""``python -m devstack.function_host --root DIR --port 7071``: host the app in a folder until Ctrl-C or SIGTERM."""

import asyncio
import importlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import azure.functions as func
import typer

from devstack.function_host.clock import TRUE, HostClock
from devstack.function_host.host import FunctionHost
from devstack.function_host.settings import HostError, load_host_json, load_settings, overridden
from scaling.service import assembly
from tidemark.foundation.log.process import quiet_sdks


def load_app(root: Path) -> func.FunctionApp:
    """Import function_app.py of a folder, which becomes the current directory, and return its one FunctionApp."""
    os.chdir(root)
    sys.path.insert(0, str(root))
    module = importlib.import_module("function_app")
    apps = [value for value in vars(module).values() if isinstance(value, func.FunctionApp)]
    if len(apps) != 1:
        raise HostError(
            f"{root / 'function_app.py'} has {len(apps)} FunctionApp objects at its top level, accepted: 1"
        )
    return apps[0]


def main(
    root: Annotated[Path, typer.Option(help="Folder of the function app.")] = Path(),
    port: Annotated[int, typer.Option(help="Port on the loopback address, 0 for a free one.")] = 7071,
    admin_key: Annotated[str, typer.Option(envvar="FUNCTION_HOST_ADMIN_KEY", help="Opens everything.")] = "",
    function_key: Annotated[
        str, typer.Option(envvar="FUNCTION_HOST_FUNCTION_KEY", help="Opens functions of level FUNCTION.")
    ] = "",
    speed: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds that pass for timers and decisions in one.")
    ] = 1.0,
    began: Annotated[
        float, typer.Option(help="Since when they pass faster: seconds since the epoch; without it, now.")
    ] = 0.0,
) -> None:
    """Run a function app. Without keys nothing is protected."""
    logging.getLogger().setLevel(logging.INFO)
    quiet_sdks(os.environ)
    try:
        root = root.resolve()
        settings = load_settings(root, os.environ)
        os.environ.update(settings)  # before the import: apps read their settings there
        clock = TRUE if speed == 1.0 else HostClock(speed, began or time.time())
        assembly.clock = clock
        host = FunctionHost(
            load_app(root),
            settings=settings,
            host_json=overridden(load_host_json(root), settings),
            port=port,
            admin_key=admin_key,
            function_key=function_key,
            log_stream=sys.stdout,
            clock=clock,
        )
        asyncio.run(_serve(host))
    except (HostError, OSError) as error:
        typer.echo(f"function host: {error}", err=True)
        raise typer.Exit(1) from error


async def _serve(host: FunctionHost) -> None:
    finished = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, finished.set)
    async with host:
        logging.getLogger("devstack.function_host").info(
            "Listening on http://127.0.0.1:%d with %d functions: %s",
            host.port,
            len(host.functions),
            ", ".join(function.name for function in host.functions),
        )
        await finished.wait()


if __name__ == "__main__":
    typer.run(main)
