"""Advice in errors and findings, followed to the letter: what it promises comes, and its cost is said where it is given."""

import ast
import importlib
import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from consumer.config import ConsumerConfig
from consumer.config import read_config as consumer_config
from consumer.doctor import checks as consumer_checks
from consumer.stores.sql.tables import TABLES
from scaling.config.policy import Pace
from scaling.config.policy_file import load_config
from scaling.decision.orders import follow_text, policy_in_force
from scaling.doctor import verdicts
from scaling.log_entry import LogEntry, LogKind
from scaling.model import Controls, Promotion, Reason, TargetState
from scaling.ports import LogPage, NewerStateError
from scaling.scalers import carrying_out
from scaling.scalers.arm.errors import Failure, Kind
from scaling.service import registry
from scaling.service.assembly import read_config
from scaling.shadow.comparison import promotion_warning
from scaling.storage.rows import log_row, read_log_row, read_target, target_row
from scaling.web import api
from scaling.web.views import log_view
from spark_jobs import cli as spark
from tests.support.scaling.fakes import MemoryPoisonQueues
from tests.support.scaling.runner import World, policy
from tests.unit.scaling.config.test_shadow_table import SETTINGS, TARGET
from tidemark.__main__ import command_line
from tidemark.analysis import cli as analysis
from tidemark.foundation.checkup import Verdict
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.sql.database import SqlDatabase

ROOT = Path(__file__).parents[2]
OLDER = 'ALTER TABLE EventHubCheckpoint DROP COLUMN "Origin"'

# -- rows of a newer release


def by_a_newer_release(world, name):
    etag, row = world.states.rows["plan"][name]
    keys = {"PartitionKey": "plan", "RowKey": name}
    world.states.rows["plan"][name] = (etag, {**row, **keys, "Schema": 2})


LOGGED = LogEntry("plan", 1_795_000_000.0, LogKind.DECISION, "decision", "a line", "incomplete_window")


async def delete_the_row_that_is_named(world):
    """What the error says is done: the row is named by its keys."""
    with pytest.raises(NewerStateError) as caught:
        await world.tick()
        await world.drain()
    finding = verdicts.newer_state(str(caught.value))
    name, target = re.search(r"the row '(\w+)' of partition '(\w+)'", finding.found).groups()
    assert "delete the row of the table ScalingState that is named" in finding.remedy
    del world.states.rows[target][name]
    return finding.found


async def test_deleting_the_state_of_a_newer_release_forgets_what_the_error_says():
    world = World(policy(out=Pace(cooldown=3600.0)))
    world.backlog = 900.0
    await world.pass_minutes(7)
    assert (world.platform.capacity, len((await world.state()).effects)) == (3, 1)
    by_a_newer_release(world, "state")

    told = await delete_the_row_that_is_named(world)
    await world.minute()

    state = await world.state()
    assert (state.last.reason, state.expected) == (Reason.INCOMPLETE_WINDOW, 3)
    for word in ("samples", "learned", "cooldowns", "pending action", "budget", "shadow", "notices"):
        assert word in told
    assert (state.effects, state.pending, state.spent, state.memories, state.shadow) == (
        (),
        None,
        None,
        {},
        b"",
    )
    await world.pass_minutes(6)
    assert world.platform.capacity == 4  # the cooldown of an hour began anew


async def test_deleting_the_orders_of_a_newer_release_lifts_them_as_the_error_says():
    world = World(policy(out=Pace(cooldown=3600.0)))
    await world.order(Controls(dry_run=True))
    world.backlog = 900.0
    await world.pass_minutes(7)
    assert world.platform.capacity == 2
    by_a_newer_release(world, "controls")

    told = await delete_the_row_that_is_named(world)
    await world.minute()

    assert "it is scaled as tidemark.toml says" in told
    assert world.platform.capacity == 3


def test_a_row_of_the_log_of_a_newer_release_is_never_to_be_deleted():
    row = {**log_row(LOGGED), "PartitionKey": "plan", "RowKey": "1", "Schema": 2}

    line = read_log_row(row).line

    assert "the row '1' of partition 'plan' has schema 2" in line
    assert "deploy that one" in line
    assert "delete" not in line


async def test_any_order_replaces_orders_that_cannot_be_read():
    world = World()
    world.backlog = 900.0
    await world.order(Controls(dry_run=True))
    etag, row = world.states.rows["plan"]["controls"]
    world.states.rows["plan"]["controls"] = (etag, {**row, "Data00": "{"})
    await world.pass_minutes(7)
    state = await world.state()
    assert (state.last.reason, world.platform.capacity) == (Reason.PAUSED, 2)
    assert "give any order, which replaces all of them" in state.last.limits[0].detail

    await api.control(world.autoscaler(), api.Order("plan", "resume", b'{"by": "kim"}'))
    await world.pass_minutes(1)

    loaded = await world.states.load("plan")
    assert (loaded.corrupt, loaded.controls.pauses, loaded.controls.dry_run) == ((), (), None)
    assert world.platform.capacity == 3


# -- a lock of Resource Manager


@pytest.mark.parametrize("backlog", [0.0, 900.0])
async def test_nothing_is_scaled_with_both_bounds_where_a_locked_plan_stands(backlog):
    told = carrying_out.advice(Failure(Kind.LOCKED, "ScopeLocked"), refused="", absent="")
    bounds = re.search(r"set (minimum) and (maximum) to what is there, and nothing is scaled", told).groups()
    world = World(policy(**dict.fromkeys(bounds, 3)), capacity=3)
    world.backlog = backlog

    await world.pass_minutes(20)

    assert await world.entries("effect") == []
    assert {entry.desired for entry in await world.entries("decision")} == {3}


# -- a file that is not there


@pytest.mark.parametrize("way", ["--root", "TIDEMARK_CONFIG"])
def test_both_ways_to_a_file_that_is_not_there_lead_to_it(tmp_path, monkeypatch, way):
    there = tmp_path / "app"
    there.mkdir()
    (there / "tidemark.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMARK_CONFIG", raising=False)
    with pytest.raises(
        ConfigError, match=r"is not there; give its folder as --root, .* the setting TIDEMARK_CONFIG"
    ):
        read_config({}, root=tmp_path)

    root, settings = (there, {}) if way == "--root" else (tmp_path, {"TIDEMARK_CONFIG": "app/tidemark.toml"})
    with pytest.raises(ConfigError, match="no target is configured"):  # it is read
        read_config(settings, root=root)


# -- a slice that the host would end


@pytest.mark.parametrize(
    ("slice_", "shutdown", "host", "verdict"),
    [
        ("9m", 50.0, 10, Verdict.FAILED),
        ("8m", 50.0, 10, Verdict.OK),
        ("9m", 20.0, 10, Verdict.OK),
        ("9m", 50.0, 15, Verdict.OK),
    ],
    ids=["too long", "CONSUMER_SLICE", "CONSUMER_SHUTDOWN", "functionTimeout"],
)
async def test_each_way_to_let_a_slice_end_in_time_does(tmp_path, slice_, shutdown, host, verdict):
    (tmp_path / "host.json").write_text(f'{{"functionTimeout": "00:{host}:00"}}')
    config = ConsumerConfig("orders", shutdown=shutdown)
    check = consumer_checks._slice({"CONSUMER_SLICE": slice_}, config, tmp_path)

    (finding,) = await check.call()

    assert finding.verdict is verdict
    if verdict is Verdict.FAILED:
        ways = "make CONSUMER_SLICE or CONSUMER_SHUTDOWN shorter, or functionTimeout in host.json longer"
        assert finding.remedy == ways


# -- poison


@pytest.mark.parametrize("queues", [("metrics",), ("metrics", "actions"), ("actions", "notices")])
async def test_deleting_the_poison_messages_of_the_queues_that_are_named_ends_the_warning(queues):
    poison = MemoryPoisonQueues(queues=("metrics", "actions", "notices"))
    for name in queues:
        await poison.put(name, "{}")
    finding = verdicts.poison(*await poison.peek())

    named = re.search(r"delete the messages of (.*?):", finding.remedy).group(1).split(", ")
    for name in named:
        del poison.messages[name.removesuffix("-poison")]

    assert named == sorted(f"{name}-poison" for name in queues)
    assert verdicts.poison(*await poison.peek()).found == "none"
    assert ("their webhooks never got" in finding.remedy) == ("notices" in queues)


# -- tables of the consumer


@pytest.mark.parametrize(
    ("before", "between"),
    [("DROP TABLE EventHubCheckpoint", "consumer to:\n(.*)"), (OLDER, "so add:\n(.*?);\nto have")],
    ids=["no table", "a table of an older version"],
)
def test_the_statements_of_an_error_make_the_tables_as_the_consumer_needs_them(tmp_path, before, between):
    place = f"sqlite:///{tmp_path}/tidemark.db"
    made = SqlDatabase(place, tables=TABLES, create_tables=True)
    made.check_tables(TABLES)
    with made.engine.begin() as connection:
        connection.exec_driver_sql(before)
    database = SqlDatabase(place, tables=TABLES, create_tables=False)
    with pytest.raises(SettingsError) as caught:
        database.check_tables(TABLES)

    with database.engine.begin() as connection:
        for statement in re.search(between, str(caught.value), re.DOTALL).group(1).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)

    database.check_tables(TABLES)
    made.engine.dispose()
    database.engine.dispose()


# -- a promoted shadow

RULES = '[[targets.plan{0}.rules]]\ntype = "threshold"\nmetric = "load"\nscale_out_above = 9\nscale_in_below = 2\n'


@pytest.mark.parametrize(
    "keys",
    ["", "minimum = 3\nmaximum = 8\n", "maximum = 30\n", 'behavior = "hpa"\n', 'in = { cooldown = "9m" }\n'],
)
def test_a_file_that_follows_a_promotion_decides_as_the_promoted_shadow_does(keys):
    def read(text):
        return load_config(text, name="t.toml", settings=SETTINGS, plug_ins=registry).policies["plan"]

    before = read(f'{TARGET}[targets.plan.shadow]\nbacklog = "backlog"\n{keys}{RULES.format(".shadow")}')
    orders = Controls(promoted=Promotion("kim", 0.0, before.shadow_id))
    advice = promotion_warning(before, orders)
    assert advice.endswith(follow_text("plan"))

    head, metrics = TARGET.split("\n\n", 1)
    metrics, rules = metrics.split("[[targets.plan.rules]]", 1)
    guard = rules.split("[[targets.plan.rules]]", 1)[1]
    named = {line.split(" = ")[0] for line in keys.splitlines() if line != "maximum = 30"}  # which is wider
    kept = [line for line in head.splitlines() if line.split(" = ")[0] not in named]
    own = [line for line in keys.splitlines() if line.split(" = ")[0] in named]
    table = "\n".join([*kept, *own, "", metrics, RULES.format(""), "[[targets.plan.rules]]" + guard])
    after = read(table)

    assert after.spec == policy_in_force(before, orders).spec
    assert promotion_warning(after, orders) is None


# -- rows of the log written before flips had conditions


def test_flips_of_rows_before_conditions_are_hidden():
    """Read as today's they said that no single value changes the decision."""
    new = {"outcome": "within_target", "conditions": [], "to": None, "beyond": False, "possible": True}
    old = {"quantity": "samples backlog", "comparator": ">=", "value": 5.0, "outcome": "within_target"}
    stored = {
        "decision_id": "plan@0",
        "target": "plan",
        "at": 1_795_000_000.0,
        "current": 2,
        "proposed": None,
        "desired": 2,
        "minimum": 1,
        "maximum": 10,
        "reason": "incomplete_window",
        "evidence": [],
        "limits": [],
        "note": "",
    }
    shown = []
    for flips in ([old], [new]):
        row = {**log_row(LOGGED), "PartitionKey": "plan", "RowKey": "1"}
        data = json.loads(row["Data00"]) | {"recommendation": stored | {"flips": flips}}
        shown.append(read_log_row(row | {"Data00": json.dumps(data)}))

    assert [len(entry.recommendation.flips) for entry in shown] == [0, 1]
    views = log_view(LogPage(shown, None)).entries
    assert [view.flips for view in views] == [(), ("no single value changes this",)]
    state, _, corrupt = read_target(
        {**target_row("plan", TargetState(), {}), "Data00": json.dumps({"last": stored | {"flips": [old]}})}
    )
    assert (corrupt, state.last.reason, state.last.flips) == ((), "incomplete_window", ())


# -- names in texts: of settings, commands and options


PRODUCT = ("tidemark", "scaling", "consumer", "spark_jobs")
NAME = re.compile(r"(?<![\w/@.%$=-])(?:[A-Z][A-Z0-9]*_)+[A-Z0-9]+(?!\w)")
NO_SETTINGS = {  # error classes of Spark, statements of SQL Server and Cosmos DB, names of SDKs, a symbol of a formula
    "N_D",
    *("CANNOT_READ_FILE_FOOTER", "FAILED_READ_FILE", "LOCK_TIMEOUT", "NO_RETRY_ERRORS"),
    *("IS_DEFINED", "PEEK_LOCK"),
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])")
OF_OTHERS = {  # options of programs that a text tells to run
    *("--enabled", "--name", "--resource-group", "--scope", "--set"),  # az
    *("--keep", "--packages", "--python"),  # gunzip and unxz, Spark, uv
    *("--add-modules", "--list-modules"),  # Java
}
COMMAND = re.compile(r"(?:[`'\"]|^)tidemark ((?:[a-z][a-z-]*(?= |[`'\"]|$) ?)+)")


@cache
def texts():
    """The string constants of the product with more than one word, with where they stand and whether that is a docstring; those
    that are one word; and the names of its constants.
    """
    told, words, constants = [], set(), set()
    for path in (each for part in PRODUCT for each in sorted((ROOT / part).rglob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                constants.add(node.id)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.strip()
                if " " not in text:
                    words.add(text)
                if " " in text or text.startswith("--"):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    told.append((where, text, id(node) in docs))
    return told, words, constants


def test_every_setting_that_a_text_names_is_one():
    """A name in capitals is read somewhere, by this very name; docstrings may also name constants."""
    settings = set(NAME.findall((ROOT / "docs/settings.md").read_text(encoding="utf-8")))
    told, words, constants = texts()
    known = settings | words | NO_SETTINGS
    wrong = {
        (where, name)
        for where, text, is_doc in told
        for name in NAME.findall(text)
        if name not in known and not (is_doc and name in constants)
    }

    assert wrong == set()


@cache
def commands():
    """Each command's options by its words; those that are loaded when they run are loaded here."""
    found = {}

    def walk(command, words):
        found[words] = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*words, name))

    walk(get_command(command_line()), ())
    for words in [words for words in found if words]:
        module = lazily.get(words[-1] if words[0] != "spark" else " ".join(words))
        if module is not None:
            own = typer.Typer()
            own.command()(importlib.import_module(module).command)
            found[words] |= {
                name for each in get_command(own).params for name in (*each.opts, *each.secondary_opts)
            }
    return found


lazily = {
    **{name: f"tidemark.analysis.{name}.local" for name in analysis.SUMMARIES},
    **{f"spark {name}": module for name, module in spark.JOBS.items()},
    "telemetry-aggregation": "spark_jobs.telemetry_aggregation.local",
    "runs": "spark_jobs.reports.runs",
}


def test_every_option_that_a_text_names_is_one():
    known = set().union(*commands().values()) | OF_OTHERS | {"--help", "--worker"}
    pages = ("tidemark/analysis/report.py",)  # variables of its style
    wrong = {
        (where, option)
        for where, text, _ in texts()[0]
        for option in OPTION.findall(text)
        if option not in known and not where.startswith(pages)
    }

    assert wrong == set()


def test_every_command_that_a_text_names_is_one_with_the_options_that_follow():
    wrong, name_of_a_session = set(), "tidemark backfill"
    for where, text, _ in texts()[0]:
        if text == name_of_a_session:
            continue
        for found in COMMAND.finditer(text):
            words = found[1].split()
            longest = next((n for n in range(len(words), 0, -1) if tuple(words[:n]) in commands()), 0)
            named = tuple(words[:longest])
            rest = (
                text[found.end() :].partition(text[found.start()])[0] if not found[0].startswith("t") else ""
            )
            options = set(OPTION.findall(rest)) if rest.startswith("--") else set()
            groups = any(other[:longest] == named and len(other) > longest for other in commands())
            if not named or (groups and len(words) > longest) or options - commands()[named]:
                wrong.add((where, found[0]))

    assert wrong == set()


def test_what_an_error_of_a_setting_lists_is_accepted():
    """Each value of a list, for each setting of the consumer that has one."""
    names = [
        name for name in texts()[1] if re.fullmatch(r"(?:CONSUMER|COSMOS|EVENTHUB|BLOB|ALLOW)_[A-Z_]+", name)
    ]
    with pytest.raises(SettingsError) as caught:
        consumer_config(dict.fromkeys(names, "no such value"))
    lists = re.findall(r"(\w+) is 'no such value'; accepted: (.*)", str(caught.value))
    tried = 0
    for name, told in lists:
        values = re.split(r", | or |, or ", told)
        if not all(re.fullmatch(r"[\w.-]+", value) for value in values):
            continue
        for value in values:
            tried += 1
            with suppress(SettingsError):  # for what else is missing
                consumer_config({name: value})
                continue
            with pytest.raises(SettingsError) as other:
                consumer_config({name: value})
            assert f"{name} is '{value}'" not in str(other.value)

    assert tried > 20
