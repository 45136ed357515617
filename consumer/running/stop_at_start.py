"""A command that is told to stop while it still loads. Light: it is imported before everything else."""

from __future__ import annotations

import os
import signal
from types import FrameType

_LINE = b"told to stop before anything was begun\n"


def leave_when_told() -> None:
    """Until the command listens by itself, SIGTERM and SIGINT end the process with status 0: nothing was begun."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, _LINE)
    os._exit(0)  # an exception could be caught by whatever is being imported
