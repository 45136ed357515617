"""Webhooks that answer as they are told, and the announcer that sends to them."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from scaling.config.notify_table import Notify, Webhook
from scaling.notice import Notice, NoticeKind
from scaling.notices.announcer import Announcer
from scaling.notices.payloads import Sender
from tests.support.scaling.fakes import Hooked, MemoryOutbox, MemoryPoisonQueues
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.http.outward import Answer, check_address

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SETTINGS = {"OPS_URL": "https://ops.example/hook?token=c2VjcmV0", "OPS_KEY": KEY}
OPS = Webhook("ops", "OPS_URL", "OPS_KEY")


class Receiver(Hooked):
    """Stands for the network: keeps each request, and answers by host; None for no answer."""

    def __init__(self):
        super().__init__()
        self.requests, self.asked = [], []
        self.answers = {}

    async def ask(self, method, url, *, setting, headers, body, limit):
        with self.call("webhook"):
            host = check_address(url, setting)
            if method == "OPTIONS":
                self.asked.append((host, headers))
            else:
                self.requests.append((host, headers, body))
            status, answered = self.answers.get(host, (200, {}))
            if status is None:
                raise UnavailableError(f"{host}: no answer within 10 s")
            return Answer(status, answered)

    def told(self, host="ops.example"):
        return [json.loads(body) for to, _, body in self.requests if to == host]


class People:
    """An announcer over fakes."""

    def __init__(self, *webhooks, settings=SETTINGS, **lasting):
        self.notify = Notify({webhook.name: webhook for webhook in (webhooks or (OPS,))}, **lasting)
        self.outbox, self.receiver = MemoryOutbox(), Receiver()
        self.poison = MemoryPoisonQueues(queues=("metrics", "actions", "notices"))
        self.announcer = Announcer(
            self.notify, self.outbox, self.poison, settings, Sender("app"), outward=self.receiver
        )


def notice(name, at=1_800_000_000.0, kind=NoticeKind.SCALED, target="plan", **changes):
    return Notice(
        **{"id": f"{kind}:{name}", "kind": kind, "target": target, "at": at, "text": name} | changes
    )


@contextmanager
def receiving(answers=None):
    """A web server on this machine: its port, and the requests it gets (method, path, headers, body). `answers` are status
    and headers by path; 202 else.
    """
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append((self.command, self.path, dict(self.headers), body))
            status, headers = (answers or {}).get(self.path, (202, {}))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def do_OPTIONS(self):
            self.do_POST()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
