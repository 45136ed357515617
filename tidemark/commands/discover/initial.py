"""`tidemark init`: a first tidemark.toml for one plan and one queue, from a few answers and without reading from Azure."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Option

from scaling.scalers.app_service.plan import plan_id
from tidemark.commands.access.where import Root, fail, root_option, settings_of
from tidemark.commands.discover.command import console, keep
from tidemark.commands.discover.found import Discovery, FoundSource, FoundTarget
from tidemark.commands.discover.writing import Written, written
from tidemark.foundation.app_settings import COMMAND_ROOT, policy_file, subscriptions_of
from tidemark.foundation.durations import positive_duration
from tidemark.foundation.errors import SettingsError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("init")
def init_command(
    plan: Annotated[str, Option(help="Resource id of the App Service Plan.")] = "",
    namespace: Annotated[str, Option(help="Service Bus namespace of the queue or subscription.")] = "",
    storage_account: Annotated[
        str, Option(help="Storage account of the queue, in place of a namespace.")
    ] = "",
    queue: Annotated[str, Option(help="The queue whose messages the plan's apps process.")] = "",
    topic: Annotated[str, Option(help="The topic, in place of a queue.")] = "",
    subscription: Annotated[str, Option(help="The subscription of that topic.")] = "",
    maximum: Annotated[int | None, Option(min=1, help="The most instances, for the bill.")] = None,
    wait: Annotated[str, Option(help="No message should wait longer: 30s, 5m.")] = "",
    concurrency: Annotated[
        int, Option(min=1, help="Messages an instance processes at once: maxConcurrentCalls, batchSize.")
    ] = 16,
    out: Annotated[Path | None, Option(help="File to write, else tidemark.toml.")] = None,
    settings_file: Annotated[
        Path | None,
        Option(
            "--settings", help="A local.settings.json that gets the app settings that are missing, else .env."
        ),
    ] = None,
    root: Root = COMMAND_ROOT,
) -> None:
    """Writes a first tidemark.toml for one plan and one queue, in dry-run, and the settings it needs. What no option says is asked."""
    settings = settings_of(root)
    out = out or policy_file(root, settings)
    if out.exists():
        fail(f"{out} is there already; move it away, or name another file with --out")
    try:
        target = _target(plan or _ask("Resource id of the App Service Plan", "--plan"))
        if not (namespace or storage_account):
            namespace = _ask("Service Bus namespace", "--namespace or --storage-account")
        if not (queue or topic):
            queue = _ask("Queue", "--queue, or --topic and --subscription")
        source = _source(namespace, storage_account, queue, topic, subscription)
        most = maximum or _whole(_ask("The most instances, for the bill", "--maximum"))
        wait = wait or _ask("How long may a message wait, such as 5m", "--wait")
        _check_wait(wait)
        of_plan = "".join(subscriptions_of([target.resource_id]))
        made = written(Discovery(of_plan, (target,), (source,), command="init"), settings)
        made = _with(made, maximum=most, wait=f'"{wait}"', concurrency=concurrency)
        settings_file = settings_file or out.with_name(".env")
        keep(out, made, settings_file)
    except (ValueError, OSError, SettingsError) as error:
        fail(str(error))
    _show_next(out, made, settings_file, root)


def _ask(question: str, option: str) -> str:
    """The answer of a person. Raises ValueError where there is none, as in a script."""
    if not sys.stdin.isatty():
        raise ValueError(f"{option}: is missing; there is nobody to ask")
    return str(typer.prompt(question)).strip()


def _target(plan: str) -> FoundTarget:
    """Raises ValueError for an id that is none of a plan."""
    resource = plan_id(plan)
    return FoundTarget("app_service_plan", str(resource), resource.name, f"Plan {resource.name}")


def _source(namespace: str, account: str, queue: str, topic: str, subscription: str) -> FoundSource:
    if namespace and account:
        raise ValueError("--namespace and --storage-account: one of them is accepted")
    if bool(queue) == bool(topic):
        raise ValueError("--queue and --topic: one of them is accepted")
    if account:
        if topic:
            raise ValueError("--topic: a storage account has none; --queue is accepted")
        return FoundSource(
            "storage_queue", "", f"{_name(account, '--storage-account')}.queue.core.windows.net", (queue,)
        )
    host = f"{_name(namespace, '--namespace')}.servicebus.windows.net"
    if queue:
        return FoundSource("service_bus_queue", "", host, (queue,))
    if not subscription:
        raise ValueError("--subscription: is missing; a topic is read by its subscription")
    return FoundSource("service_bus_subscription", "", host, (topic, subscription))


def _name(text: str, option: str) -> str:
    """The name of a namespace or account, also of its address or resource id."""
    name = text.strip().rstrip("/").rpartition("/")[2].partition(".")[0].partition(":")[0]
    if not re.fullmatch(r"[A-Za-z0-9-]{3,50}", name):
        raise ValueError(
            f"{option}: found '{text}'; accepted is a name of 3 to 50 letters, digits and -, or its address or resource id"
        )
    return name


def _whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"--maximum: found '{text}'; accepted are whole numbers of 1 or more")
    return int(text)


def _check_wait(text: str) -> None:
    try:
        positive_duration(text)
    except ValueError as error:
        raise ValueError(f"--wait: {error}") from None


def _with(made: Written, **values: Any) -> Written:
    """The file with these answers in place of guesses."""
    text = made.text
    for key, value in values.items():
        guessed = re.compile(rf"^{key} = \S+ # guess.*$", re.MULTILINE)
        text = guessed.sub(f"{key} = {value}", text)
    text = text.replace(" # guess: by its name, of those that were found", "")
    return Written(text, made.settings, made.targets)


def _show_next(out: Path, made: Written, settings_file: Path, root: Path) -> None:
    console.print(
        f"{escape(str(out))}: one target, in dry-run: decisions are logged, and nothing is changed",
        soft_wrap=True,
    )
    if made.settings:
        names = ", ".join(made.settings)
        console.print(escape(f"{settings_file}: {names} added, no secret"), soft_wrap=True)
    at = root_option(root)
    console.print("Next:", soft_wrap=True)
    console.print(escape(f"  tidemark lint {quote(str(out))}{at}"), soft_wrap=True)
    console.print(
        escape(f"  tidemark doctor{at}      # with your own rights, once you have signed in: az login"),
        soft_wrap=True,
    )
    console.print("  azd up               # docs/quickstart-azure.md", soft_wrap=True)
