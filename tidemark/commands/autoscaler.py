"""`tidemark`: read the decisions, check the rules, replay a decision. Installed with the package."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from scaling.analysis.calls import short_budgets
from scaling.analysis.lint import lint
from scaling.analysis.replay import ReplayError, comparison, decode_inputs, replay, same
from scaling.calls.budgets import budgets_of
from scaling.config.checks import Finding, Severity
from scaling.config.policy import SECONDS
from scaling.config.rule_registry import RuleError
from scaling.decision import explain
from scaling.doctor.command import app as doctor_app
from scaling.log_entry import LogEntry, LogKind, parse_decision_id
from scaling.reason import Reason
from scaling.service import registry
from scaling.service.assembly import read_config
from scaling.service.autoscaler import Autoscaler
from scaling.service.shell import STORE_DEADLINE
from scaling.shadow import report
from scaling.shadow.comparison import ShadowView, promotion_warning
from scaling.web.views import PoisonView, StatusView, TargetView, orders_text
from tidemark.commands.access.calls import show as show_calls
from tidemark.commands.access.protocol import Access, newest
from tidemark.commands.access.where import Root, Where, as_text, fail, run_at, run_here, settings_of
from tidemark.commands.discover.command import app as discover_app
from tidemark.commands.discover.initial import app as init_app
from tidemark.commands.history.command import app as history_app
from tidemark.commands.importing.command import app as import_app
from tidemark.commands.orders import notify, orders
from tidemark.commands.schema import schema
from tidemark.foundation.app_settings import COMMAND_ROOT, STORAGE, policy_file
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError, StoreUnavailableError
from tidemark.foundation.http.deployed_options import Account, App, By, account_here
from tidemark.foundation.http.which_app import connection_text
from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.log.terminal import Console, print_json
from tidemark.foundation.sanitize import one_line, without_secrets
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.version import install_hint
from tidemark.foundation.wording import count_text, duration_text, number_text, time_text

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(orders)
app.add_typer(notify)
console = Console()

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Calls = Annotated[
    bool, typer.Option("--calls", help="What the app calls, and of what budget, instead of targets.")
]


def mount(whole: typer.Typer) -> None:
    """Adds the autoscaler's commands to those of other parts."""
    for commands in (app, doctor_app, history_app, init_app, discover_app, import_app):
        whole.add_typer(commands)


@app.command()
def status(
    calls: Calls = False,
    root: Root = COMMAND_ROOT,
    app_: App = None,
    account: Account = None,
    json_: Json = False,
) -> None:
    """Every target: capacity, reason, metrics, orders; and the messages the host gave up on."""
    if calls:
        calls_seen = run_at(Where(root, app_, account), lambda access: access.calls(), log_only=True)
        print_json(calls_seen) if json_ else show_calls(console, calls_seen)
        return

    def report_unread(text: str) -> None:
        Console(stderr=True).print(f"[yellow]{as_text(without_secrets(text))}[/]")

    seen = run_at(
        Where(root, app_, account),
        lambda access: access.status(),
        report_unread=None if json_ else report_unread,
    )
    views = seen.targets
    if json_:
        print_json(seen)
        return
    shown = FittedTable("target", "now", "wanted", "bounds", "reason")
    for view in views:
        bounds = f"{view.minimum}..{view.maximum} {view.unit}"
        shown.add_row(*map(as_text, (view.target, view.current, view.desired, bounds, _reason(view))))
    console.print(shown)
    for view in views:
        line = view.line or f"{view.target}: no report yet; the collector runs on COLLECT_SCHEDULE"
        console.print(escape(one_line(line)), soft_wrap=True)
        _show_silence(view, seen)
        _show_metrics(view, line)
        if (budget := view.budget) is not None:
            console.print(f"  budget: {escape(one_line(budget.text))}", soft_wrap=True)
            if budget.warning is not None:
                console.print(f"  [yellow]{escape(one_line(budget.warning))}[/]", soft_wrap=True)
        for text in orders_text(view):
            console.print(f"  [magenta]{escape(one_line(text))}[/]", soft_wrap=True)
    _show_poison(seen.poison)
    if app_ is None:
        console.print(escape(connection_text(settings_of(root, account), STORAGE, "storage")), soft_wrap=True)


def _reason(view: TargetView) -> str | None:
    """After a start windows fill: that is shown as collecting, not as something wrong."""
    fills = view.reason == Reason.INCOMPLETE_WINDOW and any(metric.filling for metric in view.metrics)
    return "collecting" if fills else view.reason


LATE_INTERVALS, LATE_SLACK = 3, 30.0  # as in the dashboard's card.js


def _show_silence(view: TargetView, seen: StatusView) -> None:
    """That decisions have ceased: all else that is shown is of the last one."""
    age = 0.0 if view.decided_at is None else seen.now - view.decided_at
    if age > LATE_INTERVALS * max(view.interval, seen.collect_interval) + LATE_SLACK:
        console.print(
            f"  [red]no decision for {duration_text(age)}: the app does not run, or no collector[/]"
        )


def _show_metrics(view: TargetView, line: str) -> None:
    """The newest values, and why a read failed where the line of the decision is about something else."""
    values = []
    for metric in view.metrics:
        text = duration_text if metric.unit == SECONDS else number_text
        quality = f"collecting, {metric.filling}" if metric.filling else metric.quality
        values.append(f"{metric.name} {'?' if metric.latest is None else text(metric.latest)} ({quality})")
    if values:
        console.print(f"  {escape(one_line(', '.join(values)))}", soft_wrap=True)
    failures = {metric.name: metric.failure for metric in view.metrics if metric.quality != "ok"}
    for name, failure in {**failures, "capacity": view.capacity_error}.items():
        if failure and failure not in line:
            console.print(
                f"  [yellow]{escape(one_line(f'{name} was not read: {failure}'))}[/]", soft_wrap=True
            )


def _show_poison(poison: PoisonView) -> None:
    if not poison.count:
        return
    messages = count_text(poison.count, "poison message")
    console.print(f"[red]{messages}[/]: the host gave up on them, and they stay until they are removed")
    for message in poison.messages:
        at = "" if message.inserted_at is None else f" of {time_text(message.inserted_at)}"
        console.print(f"  {escape(one_line(f'{message.queue}{at}: {message.body}'))}", soft_wrap=True)


@app.command()
def log(
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    since: Annotated[str, typer.Option(help="How far back: 30m, 2h, 7d.")] = "1h",
    limit: Annotated[int, typer.Option(min=1, help="Newest entries to show.")] = 50,
    changes: Annotated[bool, typer.Option("--changes", help="Leave out holds.")] = False,
    root: Root = COMMAND_ROOT,
    app_: App = None,
    account: Account = None,
    json_: Json = False,
) -> None:
    """The scaling log, oldest first, so that the newest line stands at the prompt."""
    try:
        back = parse_duration(since)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    where = Where(root, app_, account)
    try:
        entries = run_at(
            where, lambda access: newest(access, target, back, limit, changes=changes), log_only=True
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--target") from None
    if json_:
        print_json(entries)
        return
    for entry in reversed(entries):
        style = _STYLES.get(entry.kind, "default")
        console.print(
            f"[dim]{time_text(entry.at)}[/] [{style}]{escape(one_line(entry.line))}[/]",
            soft_wrap=True,
        )
        if entry.shadow is not None and entry.shadow.desired != entry.desired:
            console.print(f"  [dim]{escape(one_line(entry.shadow.line))}[/]", soft_wrap=True)
    if not entries:
        console.print(f"no entries in the last {duration_text(back)}")


_STYLES: dict[str, str] = {
    LogKind.DECISION: "default",
    LogKind.EFFECT: "green",
    LogKind.CONTROL: "magenta",
    LogKind.VERIFY: "yellow",
}


@app.command()
def shadow(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    promote: Annotated[
        bool | None,
        typer.Option(
            "--promote/--withdraw",
            help="The shadow's rules decide from now on, or the configured ones again.",
        ),
    ] = None,
    by: By = "",
    root: Root = COMMAND_ROOT,
    app_: App = None,
    account: Account = None,
    json_: Json = False,
) -> None:
    """What the simulated rules (a target's table `shadow`) would have cost, and whether to switch to them."""

    async def work(access: Access) -> tuple[str, dict[str, ShadowView]]:
        sentence = "" if promote is None else await _promoted(access, target, promote, by)
        return sentence, await access.shadows(target)

    try:
        sentence, views = run_at(Where(root, app_, account), work)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if json_:
        print_json(views)
        return
    if sentence:
        console.print(f"[magenta]{as_text(sentence)}[/]", soft_wrap=True)
    report.show(console, views)


async def _promoted(access: Access, target: str | None, on: bool, by: str) -> str:  # noqa: FBT001 - as ordered
    """Gives the order. Raises ValueError for one that cannot be given."""
    if target is None:
        raise ValueError("TARGET: is missing; an order is for one target")
    seen = (await access.shadows(target)).get(target)
    rules = {"rules": seen.rules} if on and seen is not None and seen.rules is not None else {}
    return await access.order(target, "promote", {"on": on, **rules}, by=by or account_here())


@app.command("lint")
def lint_command(
    file: Annotated[
        Path | None,
        typer.Argument(help="The file to check, in place of the app's tidemark.toml; or a consumer's file."),
    ] = None,
    root: Root = COMMAND_ROOT,
    json_: Json = False,
) -> None:
    """Checks tidemark.toml and shows the instance counts at which rules must flap. Exit status 1 on errors."""
    if file is not None and _is_of_consumer(file):
        _lint_consumer(file, root, json_=json_)
        return
    if file is not None and root not in file.absolute().parents:  # its settings lie beside it
        root = file.absolute().parent
    settings = settings_of(root)
    if file is not None:
        settings["TIDEMARK_CONFIG"] = str(file.absolute())
    try:
        config = read_config(settings, root=root)
        short = short_budgets(config, budgets_of(settings))
    except (ConfigError, SettingsError) as error:
        fail(str(error))
    shadowed = file is None and any(policy.shadow for policy in config.policies.values())
    findings = [
        *config.findings,
        *short,
        *(finding for policy in config.policies.values() for finding in lint(policy)),
        *(_promotions(root) if shadowed else ()),
    ]
    if json_:
        print_json(findings)
    else:
        for finding in findings:
            colour = {Severity.ERROR: "red", Severity.WARNING: "yellow"}.get(finding.severity, "cyan")
            console.print(f"[{colour}]{finding.severity}[/] {escape(finding.text)}", soft_wrap=True)
        targets = count_text(len(config.policies), "target")
        file = policy_file(root, settings)
        console.print(
            escape(f"{file}: {targets} checked, {count_text(len(findings), 'finding')}"), soft_wrap=True
        )
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _is_of_consumer(file: Path) -> bool:
    try:
        return not {"hubs", "sinks"}.isdisjoint(tomllib.loads(file.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, RecursionError):  # reported when it is read
        return False


def _lint_consumer(file: Path, root: Path, *, json_: bool) -> None:
    try:
        from consumer.cli.lint import lint_file  # noqa: PLC0415 - the consumer may not be installed
    except ModuleNotFoundError as error:
        fail(f"the consumer's part is not installed: '{error.name}' is missing; {install_hint('consumer')}")
    lint_file(file, root, json_=json_)


def _promotions(root: Path) -> list[Finding]:
    """Warnings of promotions that stand; a note where the orders cannot be read, as in a build."""

    async def work(autoscaler: Autoscaler) -> list[Finding]:
        policies = autoscaler.config.policies
        shadows = [name for name, policy in policies.items() if policy.shadow is not None]
        seen = await autoscaler.ports.states.load_all(shadows)
        promotions = {
            name: promotion_warning(policies[name], snapshot.controls) for name, snapshot in seen.items()
        }
        return [
            Finding(Severity.WARNING, "promotion", name, text)
            for name, text in promotions.items()
            if text is not None
        ]

    async def bounded(autoscaler: Autoscaler) -> list[Finding]:
        try:
            async with asyncio.timeout(STORE_DEADLINE):
                return await work(autoscaler)
        except (StoreUnavailableError, TimeoutError) as error:
            text = f"whether a shadow is promoted is not known: {without_secrets(str(error)) or 'no answer'}"
            return [Finding(Severity.NOTE, "promotion", "", text)]

    return run_here(Where(root), bounded, ask_first=False)


@app.command("schema")
def schema_command() -> None:
    """Prints the JSON Schema of tidemark.toml, by which editors complete and check it."""
    print_json(schema(registry, registry.COLLECTORS, registry.SCALERS))


@app.command("replay")
def replay_command(
    decision: Annotated[str, typer.Argument(help="A decision id, as in the log's brackets.")],
    root: Root = COMMAND_ROOT,
    account: Account = None,
    json_: Json = False,
) -> None:
    """Decides again from the logged inputs and compares byte for byte. Exit status 1 when they differ."""
    try:
        target, at = parse_decision_id(decision)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="decision id") from None

    async def work(autoscaler: Autoscaler) -> LogEntry | None:
        return await autoscaler.ports.log.get(target, at, "decision")

    entry = run_here(Where(root, account=account), work, log_only=True)
    if entry is None or entry.inputs is None or entry.recommendation is None:
        fail(f"the scaling log has no decision {decision}")
    try:
        inputs = decode_inputs(entry.inputs)
        again = replay(inputs)
    except (ReplayError, RuleError) as error:
        fail(str(error))
    equal, difference = same(entry.recommendation, again), comparison(inputs, entry.recommendation, again)
    if json_:
        recorded = {"recorded": entry.recommendation, "replayed": again, "inputs": inputs}
        print_json({"same": equal, "told": difference, **recorded})
    else:
        console.print(f"recorded  {escape(explain.line(entry.recommendation))}", soft_wrap=True)
        console.print(f"replayed  {escape(explain.line(again))}", soft_wrap=True)
        for name, window in inputs.windows.items():
            values = ", ".join(number_text(value) for value in window.values)
            console.print(f"  {escape(name)}: {values or 'no samples'}", soft_wrap=True)
        console.print(f"[{'green' if equal else 'red'}]{escape(difference)}[/]", soft_wrap=True)
    if not equal:
        raise typer.Exit(1)
