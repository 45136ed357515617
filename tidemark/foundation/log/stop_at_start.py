"""Ends a command that is stopped while it loads. It imports little, because it is imported first."""

from __future__ import annotations

import os
import signal
from types import FrameType

STATUS_WHEN_STOPPED = {"consume": 0, "publish": 130, "send": 130}
"""Commands that handle signals once they have loaded -> their exit status when they are stopped: as they end themselves later (130 is
128 + SIGINT, a shell's convention)."""

_LINE = b"stopped before anything was begun\n"


def leave_on_signals(command: str) -> None:
    """Let SIGTERM and SIGINT end the process with the command's status until it handles signals. Nothing has begun by then.

    Other commands end by the signal, as usual.
    """
    if command not in STATUS_WHEN_STOPPED:
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        os.write(2, _LINE)
        os._exit(STATUS_WHEN_STOPPED[command])  # an exception could be caught by whatever is being imported

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
