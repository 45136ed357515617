"""`tidemark send` that is stopped before its first line is sent."""

import asyncio
import contextlib
import os
import signal

import pytest
import typer
from typer.testing import CliRunner

from tidemark.publisher.cli import send as command

BUS = "Endpoint=sb://localhost:1/;SharedAccessKeyName=a;SharedAccessKey=b"


async def stopped(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)


@contextlib.asynccontextmanager
async def stopped_sender(*_):
    yield await stopped()


@pytest.mark.parametrize(
    ("step", "stop"), [("_created_at", stopped), ("_sender", stopped_sender)], ids=["asking", "connecting"]
)
def test_a_stop_before_the_first_line_is_said_and_leaves_no_file(tmp_path, monkeypatch, step, stop):
    async def no_time(*_):
        return None

    monkeypatch.setattr(command, "_created_at", no_time)
    monkeypatch.setattr(command, step, stop)
    monkeypatch.setenv("ServiceBusConnection", BUS)
    (tmp_path / "lines").write_text("a\nb\n")
    app = typer.Typer()
    app.command()(command.send)

    result = CliRunner().invoke(app, ["-f", str(tmp_path / "lines"), "--queue", "q", "--root", str(tmp_path)])

    assert (result.exit_code, "stopped" in result.output) == (130, True)
    assert [file.name for file in tmp_path.iterdir()] == ["lines"]
