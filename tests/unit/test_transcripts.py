"""How a transcript is read and compared: what may differ, and what may not; and every command of the pages by its form.

tests/integration/test_transcripts.py runs those that can run here.
"""

import importlib
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from devstack.__main__ import app as devstack
from examples.__main__ import names
from scaling.config.policy_file import load_config
from scaling.decision.explain import line
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import EffectRecord
from scaling.service import registry
from scaling.window import Window
from tests.support.scaling.runner import NOW, at
from tests.support.transcripts import (
    COMMANDS,
    ELSEWHERE,
    FENCE,
    Step,
    differs,
    lines_of_shell,
    shell_commands,
    steps,
)
from tidemark.__main__ import command_line

PAGE = """
```toml title="tidemark.toml"
version = 1
```
```console
$ tidemark lint \\
    --root .
1 target checked
$ tidemark status
```
```sh
tidemark log
```
"""


def test_the_steps_of_a_page_in_their_order():
    assert list(steps(PAGE)) == [
        Step(file="tidemark.toml", text="version = 1\n"),
        Step("tidemark lint     --root .", ("1 target checked",)),
        Step("tidemark status"),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("1,200 of 1,300 done", "7 of 9.5 done", True),
        ("at 05:41:16Z", "at 23:59:00Z", True),
        ("1 -> 5", "1 -> none", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...\nd", "a\nb\nd\ne", False),
        ("name ... end", "name of anything, end", True),
        ("│ a   │ 1 │\n━━━━", "│ a │ 22 │\n\n━━", True),
        ("a", "a\nb", False),
        ("a", "5 s so far; asking storage: acme (AzureWebJobsStorage)\na", True),
        ("a\nb", "a", False),
        ("a.b (c)", "a.b (c)", True),
        ("a.b", "axb", False),
        ("", "", True),
    ],
)
def test_what_is_printed_has_the_form_of_what_is_shown_or_has_not(shown, printed, same):
    assert (differs(tuple(shown.splitlines()), printed) == "") is same


# -- the pages: every command exists, with its options

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(
            ROOT / name
            for name in (
                "README.md",
                "docs/quickstart-azure.md",
                "docs/local-stack.md",
                "devstack/README.md",
                "CONTRIBUTING.md",
            )
        ),
        *(ROOT / "docs" / "tutorials").glob("*.md"),
        *(ROOT / "examples").rglob("README.md"),
    ]
)
OTHERS = {  # what is not ours and cannot run here: how its commands begin
    "az": {
        "login",
        "acr build",
        "appservice plan show",
        "functionapp keys list",
        "servicebus namespace show",
    },
    "azd": {"auth login", "down", "env get-value", "env new", "env set", "provision", "up"},
    "databricks": {"bundle validate", "bundle deploy", "bundle run", "bundle destroy"},
    "docker": {"build", "run"},
    "gh": {"attestation verify"},
    "git": {"clone", "push", "tag"},
    "pip": {"install"},
    "pipx": {"install"},
    "uv": {"pip compile", "tool install"},
}
SHELL = {"cd", "curl", "echo", "grep", "id", "mkdir", "seq", "sleep"}


def written(page):
    """Every command of a page: of its transcripts, and of the blocks that have commands alone."""
    text = page.read_text(encoding="utf-8")
    blocks = [body for language, _, body in FENCE.findall(text) if language in COMMANDS]
    shown = re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)  # in blocks that no test runs, too
    for block in [*blocks, *shown]:
        yield from shell_commands(block)


def parse(command, words):
    """Raises where a word is no command, option or value that it takes."""
    commands = vars(command).get("commands")
    if commands and not words:
        return  # its help
    if commands and not words[0].startswith("-"):
        parse(commands[words[0]], words[1:])
    elif command.context_settings.get(
        "allow_extra_args"
    ):  # tidemark.analysis.cli.add: the options are read when it runs
        module = inspect.getclosurevars(inspect.unwrap(command.callback)).nonlocals["module"]
        single = typer.Typer()
        single.command()(importlib.import_module(module).command)
        parse(get_command(single), words)
    else:
        command.make_context(command.name, words)


@cache
def tidemark():
    return get_command(command_line())


def check(command, *, ours_alone=False):
    program, *words = (word for word in command if word != "--help")
    if program in {"tidemark", ".venv/bin/tidemark"}:
        parse(tidemark(), words)
    elif re.fullmatch(r"(?:.*/)?python", program) and words[0] == "-m":
        module, *rest = words[1:]
        if module == "devstack":
            parse(get_command(devstack), rest)
        elif module == "examples":
            assert set(rest) <= {*names(), "all"}
        else:
            assert importlib.util.find_spec(module), module
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif ours_alone:
        return
    elif program in OTHERS:
        assert any(" ".join(words).startswith(known) for known in OTHERS[program]), command
    else:
        assert program in SHELL or program.endswith("/python"), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_exists_and_takes_the_options_that_it_is_given(page):
    found = list(written(page))
    for command in found:
        check(command)

    assert found


def test_our_own_commands_on_all_other_pages_exist_and_take_the_options_that_they_are_given():
    pages = {*(ROOT / "docs").rglob("*.md"), *(ROOT / "spark_jobs").rglob("*.md")} - {*PAGES}

    for page in sorted(pages):
        for command in written(page):
            try:
                check(command, ours_alone=True)
            except BaseException as error:
                raise AssertionError(f"{page}: {' '.join(command)}") from error


def test_no_block_of_commands_is_left_out_because_nothing_says_what_it_is():
    pages = [*(ROOT / "docs").rglob("*.md"), *PAGES]
    programs = {"tidemark", "python", "python3", "make", "$", *OTHERS, *SHELL}

    for page in pages:
        text = page.read_text(encoding="utf-8")
        blocks = FENCE.findall(text)
        assert 2 * len(blocks) == len(re.findall(r"^[ >]*(?:```|~~~)", text, re.MULTILINE)), page
        for language, _, body in blocks:
            first = body.split(maxsplit=1)[0].rpartition("/")[2] if body.strip() else ""
            known = language in {*COMMANDS, "console"} if page in FRONT else language
            assert known or first not in programs, f"{page}: {body}"


@pytest.mark.parametrize(
    "wrong",
    [
        "tidemark logs",
        "tidemark log --sinse 1h",
        "tidemark log --limit many",
        "tidemark spark reconciliation --capure x",
        "python3 -c x",
        "make nothing",
        "azd destroy",
        "echo $(az vm list)",
    ],
)
def test_a_command_that_does_not_exist_is_found(wrong):
    with pytest.raises(Exception):  # noqa: B017 - of whatever kind: typer's own, or an assertion
        for command in shell_commands(wrong):
            check(command)


def test_the_commands_of_a_shell_text():
    text = 'A=1 tidemark log --app "https://$(azd env get-value <name>).net" | grep x  # why\nexport B="$C"\ncd a && tidemark \\\n lint\n'

    assert list(shell_commands(text)) == [
        ["azd", "env", "get-value", "X"],
        ["tidemark", "log", "--app", "https://X.net"],
        ["grep", "x"],
        ["cd", "a"],
        ["tidemark", "lint"],
    ]


# -- where each command of the front pages is run

AZURE, DATABRICKS = "needs Azure", "needs Databricks"
EXAMPLES, INSTALLS = "tests/integration/test_examples.py", "tests/integration/test_install_commands.py"
RUN_BY = {  # how commands begin, and what runs them before a change lands
    r"git clone |cd tidemark$": ".github/workflows/ci.yml",
    r"make (?:setup|setup-demo|test)(?: +#.*)?$": ".ci/run",
    r"make demo(?: +#.*)?$": "tests/devstack/demo/test_demo.py",
    r"\.venv/bin/python -m examples ": EXAMPLES,
    r"(?:uv tool|pipx|pip) install |uv pip compile |tidemark lint ": INSTALLS,
    r"(?:az|azd) |TIDEMARK_APP_KEY=": AZURE,
    r"databricks bundle ": DATABRICKS,
}
FRONT = [
    page
    for page in PAGES
    if page.name not in {"CONTRIBUTING.md", "local-stack.md"} and page.parent.name != "devstack"
]


def typed_by_a_reader(page):
    """The commands of a page, but those of a tutorial that tests/integration/test_transcripts.py runs."""
    text = page.read_text(encoding="utf-8")
    for language, _, body in FENCE.findall(text):
        if language in COMMANDS:
            yield from lines_of_shell(body)
    for step in steps(text):
        if step.command and (page.parent.name != "tutorials" or ELSEWHERE.match(step.command)):
            yield step.command


def test_every_command_that_the_front_pages_have_a_reader_type_is_run_by_ci_or_cannot_be():
    homes = [
        (pattern, home)
        for page in FRONT
        for command in typed_by_a_reader(page)
        for pattern, home in [home_of(page, command)]
    ]

    assert {pattern for pattern, _ in homes} == {*RUN_BY}  # none is left of a command that is gone
    assert all((ROOT / home).exists() for _, home in homes if home not in {AZURE, DATABRICKS})


def home_of(page, command):
    for pattern, home in RUN_BY.items():
        if re.match(pattern, command):
            return pattern, home
    raise AssertionError(f"{page}: nothing runs {command!r}: run it, and name in RUN_BY what does")


# -- the decisions that pages show: what their policy decides

GUID = "00000000-0000-0000-0000-000000000001"
PLAN = f"/subscriptions/{GUID}/resourceGroups/g/providers/Microsoft.Web/serverfarms/plan-orders"


@pytest.mark.parametrize(
    ("page", "policy_of", "waiting", "current", "moved_s"),
    [
        ("README.md", "README.md", [812] * 5, 1, None),
        ("docs/quickstart-azure.md", "tidemark.toml", [40], 1, None),
        ("docs/tutorials/autoscaler.md", "docs/tutorials/autoscaler.md", [2000] * 3, 3, 59),
    ],
)
def test_the_decision_that_a_page_shows_is_the_one_of_its_policy(page, policy_of, waiting, current, moved_s):
    policy = policy_of_page((ROOT / policy_of).read_text(encoding="utf-8"))
    (name,) = policy.windows
    moves = () if moved_s is None else (EffectRecord(NOW - moved_s, current - 2, current),)
    window = Window([NOW - 60 * age for age in reversed(range(len(waiting)))], [*map(float, waiting)])
    made = decide(policy, {name: window}, at(current, effects=moves), now=NOW, decision_id="plan-orders@...")
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())

    assert any(
        shows(sample, line(made)) for sample in re.findall(r"scaling plan-orders .*?(?=`| ```)", text)
    ), line(made)


def policy_of_page(text):
    toml = next((body for language, _, body in FENCE.findall(text) if language == "toml"), None)
    if toml is None:  # the file of the repository, into which the quickstart has dry_run written
        toml = text.replace("maximum = 10\n", "maximum = 10\ndry_run = true\n", 1)
    settings = {"ORDERS_PLAN_ID": PLAN, "OrdersServiceBus": "Endpoint=sb://acme.servicebus.windows.net/;x"}
    return load_config(toml, name="tidemark.toml", settings=settings, plug_ins=registry).policies[
        "plan-orders"
    ]


def shows(sample, decided):
    """Times and ids may differ, and `...` stands for anything."""
    alike = [
        re.sub(r" \[plan-orders@.*?\]|\d{4}-\d\d-\d\d \S+Z", "", text).strip() for text in (sample, decided)
    ]
    pattern = ".*".join(map(re.escape, alike[0].split("...")))
    return re.match(pattern, alike[1]) is not None
