"""The documents say what the code does: links, commands, settings, options and reasons."""

import ast
import re
import subprocess
import tomllib
from datetime import datetime
from functools import cache
from itertools import pairwise
from math import ceil
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from matplotlib import image
from typer.main import get_command
from typer.testing import CliRunner

from devstack.documentation import reference, site
from devstack.local import local_settings
from scaling.analysis.lint import lint
from scaling.calls import budgets
from scaling.collectors.number import log_query, metrics_reader
from scaling.config import policy_file
from scaling.config.checks import Severity
from scaling.config.policy_file import load_config
from scaling.config.rule_registry import RULES
from scaling.decision import explain
from scaling.decision.lock_step import neighbours
from scaling.model import Capacity, MetricFailure, MetricsReport, Reason, TargetState
from scaling.scalers.arm import clients as arm
from scaling.scalers.resource.kinds import KINDS
from scaling.service import metrics, registry
from scaling.service.registry import COLLECTORS, collector_class, scaler_class
from scaling.window import Window
from tests.support.scaling.steady_views import view
from tidemark.__main__ import command_line
from tidemark.analysis.simulation.driving import evaluate
from tidemark.foundation import settings_reader
from tidemark.foundation.app_settings import POLICY_FILE
from tidemark.foundation.azure import connections
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.http import callers, outward
from tidemark.foundation.wording import duration_text

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def section(page, title):
    """The text under a heading of a page in docs/, up to the next heading as high."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    below = text.partition(f"\n{title}\n")[2]
    return re.split(rf"\n#{{1,{len(title) - len(title.lstrip('#'))}}} ", below)[0]


def rows(text):
    """Cells of a table's rows, without its head."""
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_and_paths_of_modules_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert fragment in map(anchor, headings), link
    parts = "consumer|devstack|foundation|publisher|scaling|spark_jobs|tests|tidemark"
    for path in re.findall(rf"`((?:{parts})/[\w/]+\.py)`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_and_tidemark_command_exists(page):
    text = page.read_text(encoding="utf-8")
    code = "\n".join(
        re.findall(r"```(?:sh|bash)?\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    )
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = commands_by_name()

    assert set(re.findall(r"(?:^|\n)make ([a-z-]+)", code)) <= targets
    for command, arguments in re.findall(r"(?:^|\n|bin/)tidemark ([a-z-]+)([^\n]*)", code):
        words, found, rest = [command], commands[command], arguments
        while "commands" in vars(found) and rest.split():
            words.append(rest.split()[0])
            found, rest = found.commands[words[-1]], rest.partition(words[-1])[2]
        options = set(re.findall(r"(?<=\s)--[a-z-]+", rest))
        assert not options or options <= options_of(tuple(words), found), rest


@cache
def commands_by_name():
    return get_command(command_line()).commands


@cache
def options_of(words, command):
    """The options of a command; of one that is loaded when it runs, those its help shows."""
    if command.context_settings.get("allow_extra_args"):
        return set(re.findall(r"--[a-z-]+", CliRunner().invoke(command_line(), [*words, "--help"]).output))
    return {name for parameter in command.params for name in parameter.opts}


def test_the_reasons_are_listed_in_the_words_of_the_code():
    assert rows(section("runbook.md", "## Reasons")) == [
        [f"`{reason}`", text] for reason, text in ((each, each.words) for each in Reason)
    ]


def test_the_rules_are_listed_with_all_their_options():
    table = rows(section("policies.md", "## A rule: `[[targets.NAME.rules]]`"))
    listed = {cells[0].strip("`"): cells[1] for cells in table}

    assert set(listed) == {*RULES, "module:Class"}
    for name, rule in RULES.items():
        for field in msgspec.structs.fields(rule.Params):
            assert re.search(rf"\b{field.encode_name}\b", listed[name]), (name, field.encode_name)


def test_the_collectors_are_listed_with_all_their_options():
    text = section("policies.md", "## A metric: `[targets.NAME.metrics.METRIC]`")

    for name in COLLECTORS:
        assert f"`{name}`" in text
        for field in msgspec.structs.fields(collector_class(name).Params):
            assert f"`{field.encode_name}`" in text, (name, field.encode_name)


def test_the_kinds_of_targets_are_listed_with_what_is_known_of_them():
    table = {cells[0].strip("`"): cells for cells in rows(section("targets.md", "### Kinds that are known"))}

    assert list(table) == list(KINDS)
    for name, kind in KINDS.items():
        _, path, type_, values, pause, why = table[name]
        numbers = kind.allowed or (kind.floor, kind.ceiling)
        assert (path, type_, why) == (f"`{kind.path}`", kind.type, kind.why)
        assert pause == duration_text(kind.pause)
        assert set(map(str, numbers)) <= set(re.findall(r"\d+", values))
        assert kind.unit in values


@pytest.mark.parametrize("scaler", ["azure_resource", "advice"])
def test_the_options_of_targets_are_listed(scaler):
    text = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")

    for field in msgspec.structs.fields(scaler_class(scaler).Params):
        assert re.search(rf"\| [^|]*`{field.encode_name}`", text), field.encode_name


@pytest.mark.parametrize("number", range(6))
def test_each_example_of_a_target_is_accepted_without_a_finding(number):
    examples = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs" / "targets.md").read_text(encoding="utf-8"), re.DOTALL
    )
    text = examples[number]
    providers = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers"
    settings = {
        "AzureWebJobsStorage": "x",
        "OrdersServiceBus": "x",
        "HubConnection": "x",
        "BUS_ID": f"{providers}/Microsoft.ServiceBus/namespaces/orders",
        "DATABASE_ID": f"{providers}/Microsoft.Sql/servers/s/databases/d",
        "POOL_ID": f"{providers}/Microsoft.ContainerService/managedClusters/c/agentPools/p",
        "SHOP_ID": f"{providers}/Microsoft.App/containerApps/shop",
        "STREAM_ID": f"{providers}/Microsoft.StreamAnalytics/streamingjobs/j/transformations/t",
    }

    config = load_config(text, name="tidemark.toml", settings=settings, plug_ins=registry)

    assert len(examples) == 6
    told = [*config.findings, *(finding for policy in config.policies.values() for finding in lint(policy))]
    assert [finding.text for finding in told if finding.severity is not Severity.NOTE] == []


def test_the_settings_the_code_reads_are_the_ones_listed():
    table = rows(section("settings.md", "## Settings of the app"))
    listed = set(re.findall(r"`([A-Za-z_]+)`", " ".join(cells[0] for cells in table)))
    read = {arm.ENDPOINT, arm.AUDIENCE, connections.CA_BUNDLE, "AZURE_CLIENT_ID"}
    read |= {callers.SIGN_IN, outward.TRUSTED, log_query.ENDPOINT, metrics_reader.ENDPOINT, metrics.EXPORTER}
    read |= {budgets.BUDGETS, budgets.SHARE, settings_reader.SDK_LEVEL}
    for source in (
        *(file for part in ("tidemark/foundation", "scaling") for file in (ROOT / part).rglob("*.py")),
        ROOT / "function_app.py",
    ):
        text = source.read_text(encoding="utf-8")
        read |= set(re.findall(r"settings(?:\.get\(|\[)\"([A-Z][A-Za-z_]+)\"", text))
        read |= set(re.findall(r"%([A-Z]+_[A-Z_]+)%", text)) - {"ORDERS_PLAN_ID"}
    suffixes = set(
        re.findall(
            r"identity_setting\(\s*settings, \w+, f?\"(\w+)\"",
            (ROOT / "tidemark/foundation/azure/connections.py").read_text(),
        )
    )

    assert read <= listed, read - listed
    assert {f"__{suffix}" for suffix in suffixes - {"fullyQualifiedNamespace"}} <= {
        name if name.startswith("__") else "__" + name.partition("__")[2] for name in listed
    }
    by_the_host = {
        "AzureWebJobsStorage",
        "APPLICATIONINSIGHTS_CONNECTION_STRING",
        "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
    }
    whole = {name for name in listed if "__" not in name}
    assert whole - by_the_host <= read, whole - by_the_host - read


def test_the_defaults_of_the_apps_settings_and_what_is_accepted_are_those_of_the_code():
    """The columns are written by hand, beside meanings that no code has."""
    table = {cells[0]: cells[1:3] for cells in rows(section("settings.md", "## Settings of the app"))}
    assert parse_duration(table["`SCALING_LOG_RETENTION`"][1].strip("`")) == policy_file.DEFAULT_RETENTION
    levels = ", ".join(settings_reader.LOG_LEVELS)
    assert table[f"`{settings_reader.SDK_LEVEL}`"] == [levels, f"`{settings_reader.SDK_LOG_LEVEL}`"]
    defaults = {
        "COLLECT_SCHEDULE": policy_file.DEFAULT_SCHEDULE,
        "VERIFY_SCHEDULE": policy_file.DEFAULT_SCHEDULE,
        "TIDEMARK_CONFIG": POLICY_FILE,
    }
    assert {name: table[f"`{name}`"][1] for name in defaults} == {
        name: f"`{default}`" for name, default in defaults.items()
    }
    exporters = table[f"`{metrics.EXPORTER}`"][0]
    with pytest.raises(SettingsError, match=f"accepted: {exporters}$"):
        metrics.metrics_of({metrics.EXPORTER: "x"}, float)


def test_the_example_of_two_targets_in_step_is_an_accepted_configuration():
    text = section("policies.md", "## Instances and request units in step")
    example = text.partition("```toml")[2].partition("```")[0]
    account = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers"
    settings = {
        "FLIGHTS_PLAN_ID": f"{account}/Microsoft.Web/serverfarms/plan",
        "FLIGHTS_CONTAINER_ID": f"{account}/Microsoft.DocumentDB/databaseAccounts/a/sqlDatabases/d/containers/c",
    }

    config = load_config(example, name="example", settings=settings, plug_ins=registry)

    assert [policy.spec.scaler for policy in config.policies.values()] == [
        "cosmos_throughput",
        "app_service_plan",
    ]
    assert {
        name: neighbour.target
        for policy in config.policies.values()
        for name, neighbour in neighbours(policy).items()
    } == {"wanted": "plan-flights", "throughput": "flights-ru"}


CALENDAR_SETTINGS = {
    "ORDERS_PLAN_ID": "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/Microsoft.Web/serverfarms/p",
    "HOLIDAYS_URL": "https://calendar.test/x",
}


def calendar_example():
    return section("policies.md", "## Calendars").partition("```toml")[2].partition("```")[0]


@pytest.mark.parametrize(
    ("moment", "holiday", "bounds", "note"),
    [
        ("2026-11-26T09:00", 0.0, (4, None), "schedule: office"),
        ("2026-11-27T09:00", 0.0, (8, None), "schedule: office; schedule: sale"),
        ("2026-11-26T09:00", 1.0, (None, None), "schedule: not office, because of holidays"),
        ("2026-11-26T09:00", None, (4, None), "schedule: office, of which holidays is not known, so its floor counts"),
        ("2026-12-24T09:00", 0.0, (None, None), "schedule: not office, because of 12-24"),
        ("2026-12-28T04:59", 0.0, (None, 2), "schedule: closed"),
        ("2026-12-28T06:00", 0.0, (None, None), "schedule: not closed, because of 2026-12-28 06:00..2026-12-28 20:00"),
    ],
)  # fmt: skip
def test_the_example_of_a_calendar_does_what_is_said(moment, holiday, bounds, note):
    config = load_config(calendar_example(), name="example", settings=CALENDAR_SETTINGS, plug_ins=registry)
    policy = config.policies["plan-orders"]
    now = datetime.fromisoformat(f"{moment}:00+00:00").timestamp()
    window = Window() if holiday is None else Window([now], [holiday])

    verdict = policy.rules[0].evaluate(view(now=now, specs=policy.windows, holidays=window))

    assert (config.findings, lint(policy)) == ((), ())
    assert ((verdict.floor, verdict.ceiling), verdict.note) == (bounds, note)


@pytest.mark.parametrize("current", [2, 4, 6])
def test_a_decision_names_the_calendar_that_could_not_be_read(current):
    config = load_config(calendar_example(), name="example", settings=CALENDAR_SETTINGS, plug_ins=registry)
    policy = config.policies["plan-orders"]
    now = datetime.fromisoformat("2026-11-26T09:00:00+00:00").timestamp()
    failure = MetricFailure("holidays", now, "the calendar of HOLIDAYS_URL: does not exist")
    report = MetricsReport(policy.target, now, (), (failure,), Capacity(current, now))

    _, _, made, _ = evaluate(policy, {}, TargetState(), report)

    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    quoted = next(line for line in page.splitlines() if line.startswith("> scaling plan-orders out 2 -> 4"))
    said = explain.line(made)
    assert made.desired == max(current, 4)
    assert made.note == "schedule: office, of which holidays is not known, so its floor counts"
    assert said.startswith(quoted.removeprefix("> ")) if current == 2 else "holidays" in said


def test_the_policy_in_the_readme_is_a_whole_file_without_findings():
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]

    config = load_config(text, name="README.md", settings=local_settings(), plug_ins=registry)

    (policy,) = config.policies.values()
    assert (policy.spec.scaler, lint(policy)) == ("app_service_plan", ())


def test_the_consumers_settings_are_the_ones_its_code_reads():
    tables = section("settings.md", "## Settings of the consumer"), section("decoding.md", "## Settings")
    table = " ".join(cells[0] for text in tables for cells in rows(text))
    files = ("config.py", "options.py", "cli/consume.py", "formats.py", "web/functions.py")
    sources = [ROOT / "consumer" / name for name in files]
    read = {
        name
        for source in sources
        for name in re.findall(
            r"[\"%]((?:EVENTHUB|COSMOS|BLOB|ALLOW|CONSUMER?E?)_[A-Z_]+|TIDEMARK_TRACING)[\"%]",
            source.read_text(encoding="utf-8"),
        )
    }

    assert read == set(re.findall(r"`([A-Z_]+)`", table))


def test_the_example_in_tidemark_toml_is_an_accepted_configuration():
    head, separator, example = (
        (ROOT / "tidemark.toml").read_text(encoding="utf-8").partition("# [targets.flights]")
    )
    text = head + re.sub(r"^# ?", "", separator + example, flags=re.MULTILINE)
    settings = local_settings()

    config = load_config(text, name="tidemark.toml", settings=settings, plug_ins=registry)

    assert set(config.policies) == {"plan-orders", "flights"}
    assert config.policies["flights"].spec.scaler_options["database"] == settings["COSMOS_DATABASE"]


@pytest.mark.parametrize(
    ("name", "function", "shown"),
    [
        ("queue", "scaling_logic", ["plan-orders", "now it would be: scaling plan-orders out 1 -> 3: average backlog"]),
        ("http", "scaling_control", ["POST", '{"direction": "in", "for": "30m", "by": "ann"}', '"scaling in paused for 30 min"']),
    ],
)  # fmt: skip
def test_a_drawing_of_the_portal_says_that_it_is_one_and_shows_what_the_page_says(name, function, shown):
    drawn = ET.parse(ROOT / f"docs/images/portal-{name}.svg").iter("{http://www.w3.org/2000/svg}text")
    words = [each.text for each in drawn]
    page = section("azure-portal.md", "## Run a function by hand")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{function}`"))

    assert words[0].startswith("Drawing, not a screenshot")
    assert f" {function} " in words[1]
    assert f"(images/portal-{name}.svg)" in page
    for each in shown:
        assert each in " ".join(words)
        assert each in row


def monthly_price(targets, gigabytes):
    """What docs/azure-portal.md says follows from its numbers: compute, executions, logs, storage, alerts, in dollars."""
    minutes = 730 * 60
    seconds = (4 + ceil(targets / 8)) * minutes
    logs = (1.2 * targets + 0.3 + (2 + targets) * 1_440 * 0.0025) * 30.4 / 1_000
    return (
        max(0.0, seconds * gigabytes - 100_000) * 0.000026,
        max(0.0, (2 + targets) * minutes - 250_000) * 0.4e-6,
        max(0.0, logs - 5.0) * 2.30,
        1.05 + targets * (4 * minutes * 0.00036 / 10_000 + 0.11 * 0.045),
        6 * 1.50 + 2 * 1.00,
    )


def test_the_price_of_the_app_follows_from_the_numbers_beside_it():
    table = rows(section("azure-portal.md", "## What the app itself costs").split("It follows from")[0])

    assert [cells[0] for cells in table] == ["1", "10", "100"]
    for cells in table:
        targets, told = int(cells[0]), [re.findall(r"\$([\d.]+)", cell) for cell in cells[1:]]
        large, small = monthly_price(targets, 2.0), monthly_price(targets, 0.5)
        assert [texts[0] for texts in told] == [f"{price:.2f}" for price in (*large, sum(large))]
        assert [told[0][1], told[-1][1]] == [f"{price:.2f}" for price in (small[0], sum(small))]


def test_there_are_ten_commands_to_the_first_decision():
    text = section("quickstart-azure.md", "## Ten commands")
    commands = text.split("```sh\n")[1].split("```")[0].replace("\\\n", "").strip().splitlines()

    assert len(commands) == 10


INSTALLER = re.compile(
    r"\b(?:pip3?|pipx|uv tool|uv pip|uv|poetry|pdm|conda)\s+(?:install|run|add|inject|upgrade|sync)\b|\buvx\b"
)
OURS = re.compile(r"tidemark(?:[-_.]\w+)*(?:\[[^\]]*\])?(?:[=<>~!].*)?", re.IGNORECASE)


def by_name(command):
    """What a command would look up in an index under a name like ours: neither a path nor a direct reference."""
    words = [word for word in re.split(r"[\s'\"()\\]+", command) if word]
    return [
        word for word, after in pairwise([*words, ""]) if OURS.fullmatch(word.rstrip(",.:")) and after != "@"
    ]


def commands_to_install(text):
    """From a tool that installs to the end of its command: of each line, and of code in a sentence that is broken between lines."""
    joined = text.replace("\\\n", " ").replace("```", "\n\n")
    for line in [
        *joined.splitlines(),
        *(" ".join(code.split()) for code in re.findall(r"`([^`\n]*(?:\n[^`\n]+)?)`", joined)),
    ]:
        for found in INSTALLER.finditer(line):
            yield re.split(r"`|;|\||&&| #", line[found.end() :])[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pip install tidemark", ["tidemark"]),
        ("`pip install\n'tidemark[spark]'`", ["tidemark[spark]"]),
        ("error: python -m pip install -U 'Tidemark_Azure==0.2.0'", ["Tidemark_Azure==0.2.0"]),
        ("pip install . \\\n  tidemark-azure-cli", ["tidemark-azure-cli"]),
        ("uvx tidemark --help", ["tidemark"]),
        ("pipx inject x tidemark-azure[publisher]", ["tidemark-azure[publisher]"]),
        ("uv tool install './cli[spark]' && tidemark --help", []),
        ("pip install 'tidemark-azure[publisher] @ git+https://example.org/tidemark'", []),
        ("`pip install . './cli[consumer]'`, then `tidemark consume`", []),
    ],
)
def test_an_install_line_that_names_a_package_of_an_index_is_recognized(text, names):
    found = {name for command in commands_to_install(text) for name in by_name(command)}

    assert sorted(found) == names


@cache
def shipped_texts():
    """Name -> text of every file that people read or that says something to them, but tests."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True)
    return {
        name: (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in listed.stdout.splitlines()
        if not name.startswith("tests/")
        and (ROOT / name).is_file()
        and not name.endswith(
            (".png", ".gz", ".parquet", ".xz", ".txt", ".lock", ".svg", ".js", ".json", ".csv")
        )
    }


def test_every_extra_that_a_text_or_a_hint_names_is_one_of_that_project():
    extras = {
        name: set(
            tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        )
        for name, folder in {"": ".", "cli": "cli"}.items()
    }
    named = re.compile(r"(?:(?<![\w./])\.(/cli)?|\$PWD(/cli)?|tidemark-azure(-cli)?)\[([a-z][\w,-]*)\]")
    wrong = {}
    for name, text in shipped_texts().items():
        for *program, names in named.findall(text):
            wrong[name] = wrong.get(name, set()) | (
                set(names.split(",")) - extras["cli" if any(program) else ""]
            )
        hinted = {*re.findall(r"install_hint\(['\"]([\w-]+)", text), *re.findall(r"\bextra `([\w-]+)`", text)}
        wrong[name] = wrong.get(name, set()) | (hinted - extras["cli"])

    assert {name: names for name, names in wrong.items() if names} == {}


def test_nobody_is_told_to_install_a_package_that_is_not_published_or_not_ours():
    """`tidemark` on an index is another project, and our names are free for anybody until the first release."""
    wrong = {}
    for name, text in shipped_texts().items():
        commands = commands_to_install(text) if INSTALLER.search(text) else ()
        wrong[name] = [word for command in commands for word in by_name(command)]
        wrong[name] += re.findall(r"(?<![-\w./])tidemark\\?\[", text)

    assert {name: words for name, words in wrong.items() if words} == {}


def pages_of(navigation):
    """The files in the navigation of the site, in order."""
    for entry in navigation:
        if isinstance(entry, str):
            yield entry
        else:
            (value,) = entry.values()
            yield from pages_of([value] if isinstance(value, str) else value)


def test_every_page_has_one_place_in_the_navigation_of_the_site():
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}

    assert sorted(pages_of(navigation)) == sorted(pages)


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_that_comes_from_the_code_is_what_the_code_gives(name):
    assert (ROOT / "docs/reference" / name).read_text(encoding="utf-8") == reference.PAGES[name](), (
        "make reference"
    )


def test_a_stranger_reads_at_most_1500_words_to_the_first_decision_on_a_queue_of_their_own():
    top = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## See it work\n")[0]
    tutorial = (ROOT / "docs/tutorials/autoscaler.md").read_text(encoding="utf-8").partition("\n## 6.")[0]

    assert "(docs/tutorials/autoscaler.md)" in top
    assert "scaling plan-orders out 1 -> 3: average waiting" in tutorial
    assert len(f"{top} {tutorial}".split()) <= 1_500


def test_the_texts_count_the_recorded_loads_as_they_are():
    words = {6: "six", 8: "eight", 11: "eleven"}
    traces = (ROOT / "benchmarks/autoscaling/traces").glob("*.csv.gz")
    benchmarks = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (replayed,) = set(re.findall(r"Replayed: (\d+) traces", benchmarks))
    alone = rows(benchmarks.partition("\nOne trace at a time,")[2].partition("\n**")[0])

    assert f"On {words[int(replayed)]} recorded loads" in readme
    assert f"[the {words[len([*traces])]} in this repository]" in readme
    assert f"has {words[len(alone) - 2]}." in readme  # two stand apart
    assert f"over {words[len(alone) - 2]} traces of a day to two weeks" in benchmarks


def test_the_packages_of_azure_are_listed_with_their_bounds_and_the_version_of_the_tests():
    accepted, lock = {}, (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for file, parts in (("pyproject.toml", ("publisher",)), ("cli/pyproject.toml", None)):
        project = tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        needed = [*project["dependencies"], *(text for part in parts or extras for text in extras[part])]
        for name, bounds in re.findall(r"^(azure-[a-z-]+)([<>=][^;\n]*)", "\n".join(needed), re.MULTILINE):
            accepted.setdefault(name, set()).add(f"`{bounds.strip()}`")
    listed = rows(section("reference/compatibility.md", "## Packages of Azure"))

    assert {cells[0].strip("`"): set(cells[1].split(" or ")) for cells in listed} == accepted
    for name, _, tested in listed:
        locked = re.findall(rf"^{name.strip('`')}==(\S+)", lock, re.MULTILINE)
        assert re.findall(r"\d+\.\d+\.\w+", tested) == locked, name


def test_every_picture_is_made_by_the_one_command_or_is_a_drawing_of_the_portal():
    script = ast.parse((ROOT / "docs/images/draw.py").read_text(encoding="utf-8"))
    table = next(n.value for n in script.body if isinstance(n, ast.Assign) and n.targets[0].id == "PICTURES")
    made = {name for files in table.values for name in ast.literal_eval(files)}
    there = {path.name for path in (ROOT / "docs/images").iterdir() if path.suffix in {".png", ".svg"}}

    assert made == there - {"portal-queue.svg", "portal-http.svg"}
    functions = {n.name for n in script.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}
    assert {key.id for key in table.keys} == functions


@pytest.mark.parametrize("path", sorted((ROOT / "docs/images").glob("*.png")), ids=lambda path: path.name)
def test_a_picture_has_a_ground_of_its_own_for_pages_that_are_dark(path):
    """Dark text without a ground cannot be read on a dark page."""
    picture = image.imread(path)

    assert picture.shape[2] == 3 or picture[..., 3].min() == 1.0


REPOSITORY = "https://example.org/tidemark"


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("[rules](adding-a-rule.md#the-contract)", "[rules](adding-a-rule.md#the-contract)"),
        ("![load](images/autoscaling-grid.svg)", "![load](images/autoscaling-grid.svg)"),
        ("[see](../README.md#see-it-work)", f"[see]({REPOSITORY}/blob/HEAD/README.md#see-it-work)"),
        ("[a `[b]` c](../examples)", f"[a `[b]` c]({REPOSITORY}/tree/HEAD/examples)"),
        ("[decisions](adr/)", f"[decisions]({REPOSITORY}/tree/HEAD/docs/adr)"),
        ("[away](https://aka.ms/azd), [here](#top)", "[away](https://aka.ms/azd), [here](#top)"),
        ("```\n[x](../nowhere)\n```\n[y](../tests)", f"```\n[x](../nowhere)\n```\n[y]({REPOSITORY}/tree/HEAD/tests)"),
        ("<!-- ::: scaling.flip.Flip -->", "::: scaling.flip.Flip"),
    ],
)  # fmt: skip
def test_a_page_becomes_one_of_the_site(text, prepared):
    assert site.site_page(text, ROOT / "docs" / "page.md", REPOSITORY) == prepared


def test_decisions_are_not_searched(tmp_path):
    assert site.site_page("# 1. Why", ROOT / "docs/adr/0001-why.md", "").startswith(
        "---\nsearch:\n  exclude: true\n---\n\n# 1"
    )
    assert site.site_page("# How", ROOT / "docs/how.md", "") == "# How"
    (tmp_path / "search.json").write_text('{"items": [{"location": "adr/0001-why.html", "level": 1}]}')

    with pytest.raises(ValueError, match="the search has pages of docs/adr"):
        site.finish(tmp_path)


def test_without_an_address_of_the_repository_links_to_it_are_plain_text():
    assert site.site_page("see [this](../README.md)", ROOT / "docs" / "page.md", "") == "see this"


@pytest.mark.parametrize("link", ["[x](../nowhere.md)", "[x](../../outside)", "![x](../README.md)"])
def test_a_link_that_leads_nowhere_ends_the_build_of_the_site(link):
    with pytest.raises(ValueError, match=r"page\.md: the link .* leads nowhere"):
        site.site_page(link, ROOT / "docs" / "page.md", REPOSITORY)


@pytest.mark.parametrize(
    "tag", ['<script src="https://unpkg.com/x" async></script>', "<link href=//cdn.example/x.css>"]
)
def test_the_site_takes_nothing_from_other_hosts(tag, tmp_path):
    (tmp_path / "index.html").write_text(f"<head>{tag}</head>")
    (tmp_path / "search.json").write_text("{}")

    if tag.startswith("<script"):
        site.finish(tmp_path)
        assert "unpkg" not in (tmp_path / "index.html").read_text()
    else:
        with pytest.raises(ValueError, match=r"index\.html loads"):
            site.finish(tmp_path)
