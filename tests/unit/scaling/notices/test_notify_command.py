"""`tidemark notify test`, to a receiver on this machine."""

import pytest
from typer.testing import CliRunner

from tests.support.servers.webhooks import KEY, receiving
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


@pytest.fixture
def receiver():
    with receiving({"/gone": (404, {})}) as found:
        yield found


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
    port, requests = receiver
    result = told(tmp_path, port)

    assert result.output.splitlines() == ["ops answered 202", "gone answered 404"]
    assert result.exit_code == 1
    ((headers, body),) = [rest for _, path, *rest in requests if path.startswith("/hook")]
    assert b'"type":"tidemark.scaling.test"' in body
    assert headers["X-Token"] == "t0ken"
    assert headers["webhook-signature"].startswith("v1,")


@pytest.mark.wire
def test_one_of_them_by_name(tmp_path, receiver):
    port, requests = receiver
    assert told(tmp_path, port, "ops").exit_code == 0
    assert len(requests) == 1

    refused = told(tmp_path, port, "nobody")
    assert "webhook: found 'nobody'; configured are ops, gone" in " ".join(refused.output.split())
    assert "add a table [notify.webhooks.NAME]" in " ".join(told(tmp_path, port, notify="").output.split())
