"""The transport of a connection without a socket."""

import asyncio


class RecordingTransport(asyncio.Transport):
    """Notes what a connection does with it."""

    written, reading = b"", True
    closed = aborted = False

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.reading = False

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True
