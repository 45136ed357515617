"""HTTP/1.1 on a raw asyncio protocol: the parser is httptools, everything else is bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import httptools

from devstack.cosmos.service import Answer

Exchange = Callable[[str, str, dict[str, str], bytes], "Answer | Awaitable[Answer | None]"]
"""Method, target, headers (lower-case names), body -> the answer; None, awaited, hangs up."""

_REASONS = {status.value: status.phrase for status in HTTPStatus} | {449: "Retry With"}


class HttpConnection(asyncio.Protocol):
    """One client. `connections` holds this object for as long as the connection lives."""

    def __init__(self, exchange: Exchange, connections: "set[HttpConnection]") -> None:
        self._exchange = exchange
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # a stream
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # the protocol's signature
        self._connections.discard(self)
        self._lost.set()
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Wait until the connection is gone and nothing is under way for it."""
        await self._lost.wait()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # Called by the parser

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = []
        self._target = b""

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._task is not None:  # a pipelined request, which no SDK sends
            self.abort()
            return
        method = self._parser.get_method().decode()
        answer = self._exchange(method, self._target.decode("latin-1"), self._headers, b"".join(self._body))
        if isinstance(answer, tuple):
            self._write(answer)
        else:
            self._task = asyncio.ensure_future(self._later(answer))

    async def _later(self, answering: Awaitable[Answer | None]) -> None:
        answer = await answering
        self._task = None
        if answer is None:
            self.abort()
        else:
            self._write(answer)

    def _write(self, answer: Answer) -> None:
        if self._transport is None:
            return
        status, headers, body = answer
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
        lines.extend(f"{name}: {value}" for name, value in headers.items())
        lines.append(f"content-length: {len(body)}\r\n\r\n")
        self._transport.write("\r\n".join(lines).encode("latin-1") + body)
        if not self._parser.should_keep_alive():
            self._transport.close()
