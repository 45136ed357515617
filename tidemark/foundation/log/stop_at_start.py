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

    Other commands end by SIGTERM as usual, and by Ctrl-C without a traceback, until `take_interrupts`.
    """
    if command not in STATUS_WHEN_STOPPED:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
            signal.signal(signal.SIGINT, _leave_silently)
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        os.write(2, _LINE)
        os._exit(STATUS_WHEN_STOPPED[command])  # an exception could be caught by whatever is being imported

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def take_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, for a command that has loaded and does not handle signals itself."""
    if signal.getsignal(signal.SIGINT) is _leave_silently:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_silently(_number: int, _frame: FrameType | None) -> None:
    os._exit(130)
