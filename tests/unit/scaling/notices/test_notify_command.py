"""`tidemark notify test`, to a receiver on this machine."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from tests.notice_support import KEY
from tests.unit.scaling.config.test_budget_table import text
from tidemark.__main__ import command_line

WEBHOOKS = """
[notify.webhooks.ops]
url = "OPS_URL"
key = "OPS_KEY"
headers = { X-Token = "OPS_TOKEN" }
[notify.webhooks.gone]
url = "GONE_URL"
"""


REQUESTS = []


class Receiving(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        REQUESTS.append((self.path, dict(self.headers), body))
        self.send_response(404 if self.path == "/gone" else 202)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    server = HTTPServer(("127.0.0.1", 0), Receiving)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    REQUESTS.clear()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def told(tmp_path, port, *arguments, notify=WEBHOOKS):
    (tmp_path / "tidemark.toml").write_text(text("").replace("[targets.t.budget]\n", "") + notify)
    settings = {
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        "OPS_URL": f"http://localhost:{port}/hook?token=c2VjcmV0",
        "OPS_KEY": KEY,
        "OPS_TOKEN": "t0ken",
        "GONE_URL": f"http://localhost:{port}/gone",
        "TIDEMARK_TRUSTED_HOSTS": f"localhost:{port}",
    }
    command = ["notify", "test", *arguments, "--root", str(tmp_path)]
    return CliRunner().invoke(command_line(), command, env=settings)


@pytest.mark.wire
def test_each_webhook_is_asked_once_and_its_answer_is_shown(tmp_path, receiver):
    result = told(tmp_path, receiver)

    assert result.output.splitlines() == ["ops answered 202", "gone answered 404"]
    assert result.exit_code == 1
    ((headers, body),) = [rest for path, *rest in REQUESTS if path.startswith("/hook")]
    assert b'"type":"tidemark.scaling.test"' in body
    assert headers["X-Token"] == "t0ken"
    assert headers["webhook-signature"].startswith("v1,")


@pytest.mark.wire
def test_one_of_them_by_name(tmp_path, receiver):
    assert told(tmp_path, receiver, "ops").exit_code == 0
    assert len(REQUESTS) == 1

    refused = told(tmp_path, receiver, "nobody")
    assert "webhook: found 'nobody'; configured are ops, gone" in " ".join(refused.output.split())
    assert "add a table [notify.webhooks.NAME]" in " ".join(
        told(tmp_path, receiver, notify="").output.split()
    )
