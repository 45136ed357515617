"""A command that is stopped while it still loads. Light: it is imported before everything else."""

from __future__ import annotations

import os
import signal
from types import FrameType

STATUS_WHEN_STOPPED = {"consume": 0, "publish": 130, "send": 130}
"""The commands that listen to signals themselves once they have loaded, and their exit status when they are stopped."""

_LINE = b"stopped before anything was begun\n"


def leave_on_signals(command: str) -> None:
    """Until the command listens by itself, SIGTERM and SIGINT end the process with its status, for nothing was begun. Other
    commands end by the signal, as ever.
    """
    if command not in STATUS_WHEN_STOPPED:
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        os.write(2, _LINE)
        os._exit(STATUS_WHEN_STOPPED[command])  # an exception could be caught by whatever is being imported

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
