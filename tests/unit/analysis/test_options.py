"""Options that commands share are the same with and without Spark, and what cannot be read is one line that names it."""

import importlib
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tidemark.__main__ import command_line
from tidemark.analysis.cli import SUMMARIES
from tidemark.analysis.options import with_groups

OWN = {"output", "config", "arrivals", "log", "costs"}
"""What is a file of this machine in the one and a place that Spark reads in the other; `config` says what it is for."""


def options_of(module):
    command = typer.Typer()
    command.command()(importlib.import_module(module).command)
    return {each.name: each for each in typer.main.get_command(command).params}


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_an_option_has_one_help_and_one_default_with_and_without_spark(name):
    here, there = options_of(f"tidemark.analysis.{name}.local"), options_of(f"spark_jobs.{name}.job")
    shared = here.keys() & there.keys() - OWN - {"root" if name == "cost" else ""}

    assert len(shared) >= 2
    for option in shared:
        one, other = here[option], there[option]
        assert (one.opts, one.help, one.default) == (other.opts, other.help, other.default), option


@dataclass(frozen=True, kw_only=True)
class Group:
    many: Annotated[int, typer.Option(help="How many.")] = 3
    name: Annotated[str, typer.Option()]


def test_a_group_of_options_is_its_fields_in_their_place():
    given = []

    @with_groups
    def command(*, first: str = "x", group: Group, last: bool = False) -> None:
        """Says this."""
        given.append((first, group, last))

    app = typer.Typer()
    app.command()(command)
    made = typer.main.get_command(app)
    assert (made.help, made.params[1].help) == ("Says this.", "How many.")
    assert [each.name for each in made.params][:4] == ["first", "many", "name", "last"]
    assert CliRunner().invoke(app, ["--name", "y", "--last"]).exit_code == 0
    assert given == [("x", Group(name="y"), True)]
    assert CliRunner().invoke(app, []).exit_code == 2  # the name is needed


RATE = ("orders.csv", "--service-rate", "1")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("advise", "orders.csv"), "--service-rate"),
        (("advise", *RATE, "--target", "plans"), "--target: found 'plans'; did you mean 'plan'?"),
        (("advise", "orders.csv", "--service-rate", "-1"), "--service-rate: found -1"),
        (("advise", "orders.csv", "--concurrency", "0"), "--concurrency: found 0"),
        (("advise", *RATE, "--wait", "soon"), "--wait: found 'soon'"),
        (("advise", *RATE, "--start-up", "0.5s"), "--start-up: found 0.5 s; a replay goes by whole seconds"),
        (("advise", *RATE, "--late", "2"), "--late"),
        (("advise", "nothing.csv"), "nothing.csv does not exist"),
        (("advise", *RATE, "--config", "other.toml"), "other.toml"),
        (("seasons", *RATE, "--start-up", "soon"), "--start-up: found 'soon'"),
        (("seasons", *RATE, "--time-zone", "Berlin"), "--time-zone is 'Berlin'; accepted"),
        (("seasons", *RATE, "--share", "x"), "--share"),
        (("seasons", *RATE, "--allow", "x=1"), "--allow is 'x=1'; accepted"),
        (("cost", "--costs", "c", "--log", "l", "--price", "x"), "--price is 'x'; accepted"),
        (("cost", "--costs", "c", "--log", "l", "--resource", "x"), "--resource is 'x'; accepted"),
        (("cost", "--costs", "c", "--log", "l", "--hold", "x"), "--hold"),
        (("cost", "--costs", "c", "--log", "l", "--from", "noon"), "--from is 'noon'; accepted"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text(
        "t,arrivals,target\n" + "".join(f"{60 * n},60,plan\n" for n in range(9))
    )

    found = CliRunner().invoke(command_line(), command)

    assert found.exit_code == 1
    assert words in " ".join(found.output.split())
