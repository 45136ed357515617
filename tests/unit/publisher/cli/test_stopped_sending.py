"""`tidemark send` that is stopped before its first line is sent."""

import asyncio
import contextlib
import os
import signal

import pytest
import typer
from typer.testing import CliRunner

from tidemark.publisher.cli import send as command
from tidemark.publisher.service_bus.sdk import entity_identity

BUS = "Endpoint=sb://localhost:1/;SharedAccessKeyName=a;SharedAccessKey=b"


async def stopped(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)


@contextlib.asynccontextmanager
async def stopped_sender(*_, **__):
    yield await stopped()


async def no_time(*_):
    return None


@pytest.mark.parametrize(
    ("asking", "connecting"),
    [(stopped, command._sender), (no_time, stopped_sender)],
    ids=["asking", "connecting"],
)
def test_a_stop_before_the_first_line_is_said_and_leaves_no_file(tmp_path, monkeypatch, asking, connecting):
    monkeypatch.setattr(entity_identity, "entity_created_at", asking)
    monkeypatch.setattr(command, "_sender", connecting)
    monkeypatch.setenv("ServiceBusConnection", BUS)
    (tmp_path / "lines").write_text("a\nb\n")
    app = typer.Typer()
    app.command()(command.send)

    result = CliRunner().invoke(app, ["-f", str(tmp_path / "lines"), "--queue", "q", "--root", str(tmp_path)])

    assert (result.exit_code, "stopped" in result.output) == (130, True)
    assert [file.name for file in tmp_path.iterdir()] == ["lines"]
