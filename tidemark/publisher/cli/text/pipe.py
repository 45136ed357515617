"""Standard input and other inputs that cannot seek: reading one may wait for whoever writes it, for as long as nobody writes."""

from __future__ import annotations

import io
import os
import select
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER = 64 * 1024  # bytes: what a pipe of Linux holds


class Pipe(io.BufferedReader):
    """An input that cannot seek. `stop` ends a read that waits in another thread, which would keep a stopped process alive."""

    def __init__(self, file: BinaryIO) -> None:
        self._descriptor = _Descriptor(file)
        super().__init__(self._descriptor, _BUFFER)

    def would_wait(self) -> bool:
        """Whether no whole line can be read now. Of a line that is being written in parts this is not always known."""
        if self._descriptor.is_ready():
            return False
        self._descriptor.may_wait = False
        try:
            return b"\n" not in self.peek()
        finally:
            self._descriptor.may_wait = True

    def stop(self) -> None:
        """Let this read and all later ones raise OSError."""
        self._descriptor.stop()


class _Descriptor(io.RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file  # kept open
        self._fd = file.fileno()
        self._stopped, self._stop = os.pipe()
        self.may_wait = True

    def readable(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return bool(select.select([self._fd], [], [], 0)[0])

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        if not self.may_wait and not self.is_ready():
            return None
        if self._stopped in select.select([self._fd, self._stopped], [], [])[0]:
            raise OSError("the input is not read any more")
        return os.readv(self._fd, [buffer])

    def stop(self) -> None:
        os.write(self._stop, b"\n")  # nobody reads it, so that later reads end as well

    def close(self) -> None:
        if not self.closed:
            os.close(self._stopped)
            os.close(self._stop)
        super().close()
