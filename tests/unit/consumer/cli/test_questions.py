"""What becomes of a question that nobody answers, as in a pipeline."""

import typer
from typer.testing import CliRunner

from consumer.cli.support import ask


def test_a_question_that_nobody_answers_says_how_it_is_answered_and_changes_nothing():
    changed = []

    def change() -> None:
        ask("Write these events again?", yes=False)
        changed.append(True)

    app = typer.Typer()
    app.command()(change)

    ended = CliRunner().invoke(app, input="")

    assert (ended.exit_code, changed) == (1, [])
    assert "nobody answered, so nothing was changed; --yes answers without a terminal" in ended.output
