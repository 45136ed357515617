"""The driver's side and the executors' side of sharing one budget: a small HTTP server, and its client.

Each attempt at a partition asks for its share twice a second, and reports its counts with that. Who asks must know the
job's random token; bodies are JSON. The server runs on the driver, at the address that Spark gives its executors.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import aiohttp
import msgspec
from msgspec import Struct

from spark_jobs.backfill.budget.progress import Counts, Progress
from spark_jobs.backfill.budget.shares import LEASE, Shares, SupersededError

ASK_EVERY = 0.5
"""Seconds between two requests of an attempt."""
ANSWER_WITHIN = 3.0
"""Seconds: four answers in a row may be lost before a lease ends."""
_LARGEST = 1 << 20  # bytes of a request


class Address(Struct, frozen=True):
    """Where the coordinator is. `token` is a secret of this job."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


class Ask(Struct, frozen=True):
    """`holds` is the number of the share in use, 0 for none. `over` ends the attempt: its share is free."""

    partition: str
    attempt: str
    holds: int
    counts: Counts
    over: bool = False


class Answer(Struct, frozen=True):
    """A share, valid for `seconds` from when it was asked for."""

    amount: float
    number: int
    seconds: float


class UnreachableError(Exception):
    """No share could be had in time: the driver is gone, or cannot be reached."""


class Coordinator:
    """Answers asks on a thread of its own from `with` to its end. `progress` is read under `lock`."""

    def __init__(
        self, shares: Shares, *, host: str = "127.0.0.1", bind: str = "127.0.0.1", port: int = 0
    ) -> None:
        """`host` is the name executors reach this machine by. Raises OSError if the port is taken."""
        self.lock = threading.Lock()
        self.progress = Progress()
        self._shares = shares
        self._token = secrets.token_urlsafe(32)
        self._began = time.monotonic()
        self._server = _Server((bind, port), self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="coordinator", daemon=True
        )
        self.address = Address(f"http://{host}:{self._server.server_address[1]}/", self._token)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()

    def handle(self, ask: Ask) -> Answer:
        """Raises SupersededError."""
        with self.lock:
            self.progress.record(ask.partition, ask.attempt, ask.counts, self.elapsed)
            now = time.monotonic()
            if ask.over:
                self._shares.release(ask.partition, ask.attempt, now=now)
                return Answer(0.0, 0, 0.0)
            share = self._shares.renew(ask.partition, ask.attempt, holds=ask.holds, now=now)
            return Answer(share.amount, share.number, self._shares.lease)

    def knows(self, authorization: str) -> bool:
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for them: nobody gets an answer after the end

    def __init__(self, address: tuple[str, int], coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error; it asks again."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 3 * LEASE  # of an idle connection: who is silent for so long is gone

    def do_POST(self) -> None:
        coordinator = self.server.coordinator
        length = int(self.headers.get("Content-Length") or 0)
        if not coordinator.knows(self.headers.get("Authorization", "")) or not 0 < length <= _LARGEST:
            self.close_connection = True
            self._answer(401 if length <= _LARGEST else 413, b"")
            return
        try:
            answer = coordinator.handle(msgspec.json.decode(self.rfile.read(length), type=Ask))
        except SupersededError:
            self._answer(409, b"")
        except msgspec.DecodeError:
            self._answer(400, b"")
        else:
            self._answer(200, msgspec.json.encode(answer))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Logs nothing: two lines per second and task are of no use to anybody."""


class CoordinatorClient:
    """What an executor asks with. One per attempt at a partition, made and closed on its event loop."""

    def __init__(self, address: Address) -> None:
        self._url = address.url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {address.token}"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_WITHIN),
        )

    async def aclose(self) -> None:
        await self._session.close()

    async def ask(self, ask: Ask) -> Answer:
        """Raises SupersededError, and UnreachableError when there was no good answer in time: ask again."""
        try:
            async with self._session.post(self._url, data=msgspec.json.encode(ask)) as response:
                if response.status == 409:
                    raise SupersededError(f"a later attempt works on partition {ask.partition}")
                if response.status != 200:
                    raise UnreachableError(f"the coordinator answered {response.status}")
                return msgspec.json.decode(await response.read(), type=Answer)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise UnreachableError(f"{self._url}: {type(error).__name__}: {error}") from error
