"""A small HTTP server on a thread of its own, which answers also while the event loop is blocked.

Its threads are daemons: it ends with the process. It answers GET and HEAD without a body and knows no secrets; whoever reaches the port
sees names, numbers and errors of the consumer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from msgspec import Struct

from consumer.probes.health import Pulse, state_of, why_dead, why_unready
from consumer.probes.prometheus import CONTENT_TYPE, merged, metrics_text
from consumer.telemetry.records import Identity
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import without_secrets

EVERYWHERE = ""
"""The host name of every address of this machine."""
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
PATHS = ("/live", "/ready", "/metrics", "/state")
_IDLE = 10.0
"""Seconds after which a connection without a request is closed."""


class Answer(Struct, frozen=True):
    """`status` 200 is good, 503 is not."""

    status: int
    body: str
    content_type: str = PLAIN


def verdict(problem: str) -> Answer:
    """The answer of a probe: 200, or 503 with the reason."""
    return Answer(503, f"{problem}\n") if problem else Answer(200, "ok\n")


class Board:
    """What the event loop publishes of one consumer: it replaces `pulse` at each beat, and the server's threads read it."""

    def __init__(self, identity: Identity, now: float) -> None:
        self.identity = identity
        self.pulse = Pulse(now)


class ProcessAnswers:
    """The answers of a process with one consumer or several: it is good if all of them are."""

    def __init__(self, boards: Sequence[Board], clock: Callable[[], float] = time.monotonic) -> None:
        self._boards = boards
        self._clock = clock

    def __call__(self, path: str) -> Answer:
        now = self._clock()
        pulses = [(board.identity, board.pulse) for board in self._boards]
        match path:
            case "/live":
                return verdict(self._problems(why_dead, pulses, now))
            case "/ready":
                return verdict(self._problems(why_unready, pulses, now))
            case "/metrics":
                return Answer(200, merged(_metrics(*pulse, now) for pulse in pulses), CONTENT_TYPE)
            case _:
                return Answer(
                    200, json_text({"consumers": [state_of(*pulse, now) for pulse in pulses]}), JSON
                )

    def _problems(
        self, ask: Callable[[Pulse, float], str], pulses: Sequence[tuple[Identity, Pulse]], now: float
    ) -> str:
        problems = [(identity.consumer, ask(pulse, now)) for identity, pulse in pulses]
        return "; ".join(f"{name}: {problem}" for name, problem in problems if problem)


def _metrics(identity: Identity, pulse: Pulse, now: float) -> str:
    gauges = {
        "consumer_live": ("1 while /live answers 200", float(not why_dead(pulse, now))),
        "consumer_ready": ("1 while /ready answers 200", float(not why_unready(pulse, now))),
        "consumer_beat_age_seconds": ("Time since the event loop was seen", max(0.0, now - pulse.at)),
    }
    return metrics_text(identity, pulse.statistics, gauges)


def json_text(value: Any) -> str:
    """JSON for people, without the secrets that errors may have."""
    return without_secrets(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n"


class ProbeServer:
    """Answers from its construction to `close`, or to the end of the process."""

    def __init__(self, host: str, port: int, answer: Callable[[str], Answer]) -> None:
        """`host` is one address of this machine or EVERYWHERE. Raises SettingsError for a port that cannot be had."""
        try:
            self._server = _Server((host, port), answer)
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"CONSUMER_HTTP_PORT: port {port} of {host or 'this machine'} cannot be had: {getattr(error, 'strerror', '') or error}; accepted: a"
                " free port from 1024 to 65535 (with --processes N the N ports after it are used too), or 0 for none"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="probes", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends within half a second; open connections end with the process."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], answer: Callable[[str], Answer]) -> None:
        self.answer = answer
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the base class's look-up of the machine's full name, which may take seconds where there is no DNS."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE
    protocol_version = "HTTP/1.1"
    server_version = "tidemark"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if path not in PATHS:
            self._send(Answer(404, f"there are {', '.join(PATHS)}\n"))
            return
        try:
            answer = self.server.answer(path)
        except Exception as error:  # a probe that cannot be answered is not good, and must not be silent
            answer = Answer(500, f"{type(error).__name__}: {without_secrets(str(error))}\n")
        self._send(answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode()
        headers: Mapping[str, str] = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
        }
        with contextlib.suppress(OSError):  # the client hung up
            self.send_response(answer.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Logs nothing: probes come every few seconds."""
