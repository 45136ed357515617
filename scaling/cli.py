"""`tidemark`: read the decisions, check the rules, replay a decision. Installed with the package."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from foundation import app_settings
from foundation.app_settings import ROOT
from foundation.durations import parse_duration
from foundation.errors import SettingsError, StoreUnavailableError
from foundation.http.callers import NOBODY, named
from foundation.sanitize import one_line, without_secrets
from foundation.settings_reader import ConfigError
from foundation.wording import count_text, duration_text, number_text, time_text
from scaling.analysis.lint import lint
from scaling.analysis.replay import ReplayError, comparison, decode_inputs, replay, same
from scaling.config.checks import Finding, Severity
from scaling.config.rule_registry import RuleError
from scaling.decision import explain
from scaling.doctor.command import app as doctor_app
from scaling.history.command import app as history_app
from scaling.log_entry import LogEntry, LogKind, parse_decision_id
from scaling.ports import PoisonMessage
from scaling.service.assembly import assemble, read_config
from scaling.service.autoscaler import Autoscaler
from scaling.service.shell import STORE_DEADLINE
from scaling.shadow import report
from scaling.shadow.comparison import ShadowView, promotion_warning, shadow_view
from scaling.web.api import carry_out
from scaling.web.views import PoisonView, StatusView, orders_text, status_view

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console()
errors = Console(stderr=True)

_T = TypeVar("_T")

Root = Annotated[Path, typer.Option("--root", help="Folder of tidemark.toml, .env and local.settings.json.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def mount(whole: typer.Typer) -> None:
    """Adds the autoscaler's commands to those of other parts."""
    whole.add_typer(app)
    whole.add_typer(doctor_app)
    whole.add_typer(history_app)


def settings_of(root: Path) -> dict[str, str]:
    """The app's settings: see `app_settings`."""
    try:
        return app_settings.settings_of(root)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None


def _run(root: Path, work: Callable[[Autoscaler], Coroutine[Any, Any, _T]]) -> _T:
    """Runs `work` with an autoscaler and closes it; expected errors become one message and exit status 1."""

    async def main() -> _T:
        autoscaler = assemble(settings_of(root), root=root)
        try:
            return await work(autoscaler)
        finally:
            await autoscaler.aclose()

    try:
        return asyncio.run(main())
    except (ConfigError, StoreUnavailableError, ReplayError, RuleError) as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    """Ends the command with exit status 1."""
    shown = "\n".join(one_line(line) for line in without_secrets(message).split("\n"))
    errors.print(f"[red]error:[/] {escape(shown)}", soft_wrap=True)
    raise typer.Exit(1)


@app.command()
def status(root: Root = ROOT, json_: Json = False) -> None:  # noqa: FBT002 - a command-line flag
    """Every target: capacity, reason, metrics, orders; and the messages the host gave up on."""

    async def work(autoscaler: Autoscaler) -> StatusView:
        snapshots = await autoscaler.ports.states.load_all(autoscaler.config.policies)
        poison: tuple[int, Sequence[PoisonMessage]] = (0, ())
        try:
            poison = await autoscaler.ports.poison.peek()
        except StoreUnavailableError as error:  # a right of its own; the targets can be shown without
            if json_:
                raise
            errors.print(f"[yellow]poison messages are not known:[/] {_text(without_secrets(str(error)))}")
        return status_view(autoscaler.config, snapshots, poison, now=autoscaler.clock())

    seen = _run(root, work)
    views = seen.targets
    if json_:
        _print_json(seen)
        return
    table = Table("target", "now", "wanted", "bounds", "reason", "metrics")
    for view in views:
        metrics = "\n".join(
            f"{m.name} {'?' if m.latest is None else number_text(m.latest)} ({m.quality})"
            for m in view.metrics
        )
        bounds = f"{view.minimum}..{view.maximum}"
        cells = (view.target, view.current, view.desired, bounds, view.reason, metrics)
        table.add_row(*map(_text, cells))
    console.print(table)
    for view in views:
        line = view.line or f"{view.target}: no report yet; the collector runs on COLLECT_SCHEDULE"
        console.print(escape(one_line(line)), soft_wrap=True)
        if (budget := view.budget) is not None:
            console.print(f"  budget: {escape(one_line(budget.text))}", soft_wrap=True)
            if budget.warning is not None:
                console.print(f"  [yellow]{escape(one_line(budget.warning))}[/]", soft_wrap=True)
        for text in orders_text(view):
            console.print(f"  [magenta]{escape(one_line(text))}[/]", soft_wrap=True)
    _show_poison(seen.poison)


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
    changes: Annotated[bool, typer.Option("--changes", help="Leave out holds.")] = False,  # noqa: FBT002 - a flag
    root: Root = ROOT,
    json_: Json = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """The scaling log, oldest first, so that the newest line stands at the prompt."""
    try:
        back = parse_duration(since)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None

    async def work(autoscaler: Autoscaler) -> list[LogEntry]:
        if target is not None:
            await _require_known(autoscaler, target)
        return await _newest(autoscaler, target, autoscaler.clock() - back, limit, changes=changes)

    entries = _run(root, work)
    if json_:
        _print_json(entries)
        return
    for entry in reversed(entries):
        style = _STYLES.get(entry.kind, "")
        console.print(
            f"[dim]{time_text(entry.at)}[/] [{style}]{escape(one_line(entry.line))}[/]",
            soft_wrap=True,
        )
        if entry.shadow is not None and entry.shadow.desired != entry.desired:
            console.print(f"  [dim]{escape(one_line(entry.shadow.line))}[/]", soft_wrap=True)
    if not entries:
        console.print(f"no entries in the last {duration_text(back)}")


async def _require_known(autoscaler: Autoscaler, target: str) -> None:
    """A target that is configured, or was: its entries stay. Orders for consumers are logged as `consumer NAME`."""
    policies = autoscaler.config.policies
    if target in policies or (await autoscaler.ports.log.read(target, limit=1)).entries:
        return
    near = difflib.get_close_matches(target, policies, n=1)
    known = f"did you mean '{near[0]}'?" if near else f"configured are {', '.join(list(policies)[:20])}"
    raise typer.BadParameter(
        f"found '{target}', of which the log has nothing; {known}", param_hint="--target"
    )


_STYLES = {
    LogKind.DECISION: "default",
    LogKind.EFFECT: "green",
    LogKind.CONTROL: "magenta",
    LogKind.VERIFY: "yellow",
}


async def _newest(
    autoscaler: Autoscaler, target: str | None, since: float, limit: int, *, changes: bool
) -> list[LogEntry]:
    found: list[LogEntry] = []
    continuation: str | None = None
    while len(found) < limit:
        page = await autoscaler.ports.log.read(
            target, since=since, limit=min(limit, 500), continuation=continuation
        )
        found += [
            e for e in page.entries if not changes or e.kind is not LogKind.DECISION or e.current != e.desired
        ]
        continuation = page.continuation
        if continuation is None:
            break
    return found[:limit]


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
    by: Annotated[str, typer.Option(help="Your name, for the scaling log; an order needs one.")] = "",
    root: Root = ROOT,
    json_: Json = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """What the rules on paper (a target's table `shadow`) would have cost, and whether to switch to them."""

    async def work(autoscaler: Autoscaler) -> tuple[str, dict[str, ShadowView]]:
        told = "" if promote is None else await _promoted(autoscaler, target, promote, by)
        policies = report.those_with_shadows(autoscaler.config.policies, target)
        snapshots = await autoscaler.ports.states.load_all(policies)
        seen = {n: shadow_view(policies[n], each.state, each.controls) for n, each in snapshots.items()}
        return told, {name: view for name, view in seen.items() if view is not None}

    try:
        told, views = _run(root, work)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if json_:
        _print_json(views)
        return
    if told:
        console.print(f"[magenta]{_text(told)}[/]", soft_wrap=True)
    report.show(console, views)


async def _promoted(autoscaler: Autoscaler, target: str | None, on: bool, by: str) -> str:  # noqa: FBT001 - as ordered
    """Gives the order. Raises ValueError for one that cannot be given."""
    policy = autoscaler.config.policies.get(target or "")
    if policy is None:
        raise ValueError(f"TARGET: found {target!r}; accepted are {', '.join(autoscaler.config.policies)}")
    name, told = named(NOBODY, by or None)
    stored = await autoscaler.ports.states.load(policy.target)
    seen = shadow_view(policy, stored.state, stored.controls)
    rules = {"rules": seen.rules} if on and seen is not None and seen.rules is not None else {}
    return await carry_out(autoscaler, policy, "promote", {"on": on, **rules}, by=name, told=told)


@app.command("lint")
def lint_command(
    root: Root = ROOT,
    json_: Json = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Checks tidemark.toml and shows the instance counts at which rules must flap. Exit status 1 on errors."""
    try:
        config = read_config(settings_of(root), root=root)
    except ConfigError as error:
        _fail(str(error))
    findings = [
        *config.findings,
        *(finding for policy in config.policies.values() for finding in lint(policy)),
        *(_promotions(root) if any(policy.shadow for policy in config.policies.values()) else ()),
    ]
    if json_:
        _print_json(findings)
    else:
        for finding in findings:
            colour = {Severity.ERROR: "red", Severity.WARNING: "yellow"}.get(finding.severity, "cyan")
            console.print(f"[{colour}]{finding.severity}[/] {escape(finding.text)}", soft_wrap=True)
        targets = count_text(len(config.policies), "target")
        console.print(f"{targets} checked, {count_text(len(findings), 'finding')}")
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _promotions(root: Path) -> list[Finding]:
    """Warnings of promotions that stand; a note where the orders cannot be read, as in a build."""

    async def work(autoscaler: Autoscaler) -> list[Finding]:
        policies = autoscaler.config.policies
        shadows = [name for name, policy in policies.items() if policy.shadow is not None]
        seen = await autoscaler.ports.states.load_all(shadows)
        told = {name: promotion_warning(policies[name], each.controls) for name, each in seen.items()}
        return [
            Finding(Severity.WARNING, "promotion", name, text)
            for name, text in told.items()
            if text is not None
        ]

    async def bounded(autoscaler: Autoscaler) -> list[Finding]:
        try:
            async with asyncio.timeout(STORE_DEADLINE):
                return await work(autoscaler)
        except (StoreUnavailableError, TimeoutError) as error:
            text = f"whether a shadow is promoted is not known: {without_secrets(str(error)) or 'no answer'}"
            return [Finding(Severity.NOTE, "promotion", "", text)]

    return _run(root, bounded)


@app.command("replay")
def replay_command(
    decision: Annotated[str, typer.Argument(help="A decision id, as in the log's brackets.")],
    root: Root = ROOT,
    json_: Json = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Decides again from the logged inputs and compares byte for byte. Exit status 1 when they differ."""
    try:
        target, at = parse_decision_id(decision)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="decision id") from None

    async def work(autoscaler: Autoscaler) -> LogEntry | None:
        return await autoscaler.ports.log.get(target, at, "decision")

    entry = _run(root, work)
    if entry is None or entry.inputs is None or entry.recommendation is None:
        _fail(f"the scaling log has no decision {decision}")
    try:
        inputs = decode_inputs(entry.inputs)
        again = replay(inputs)
    except (ReplayError, RuleError) as error:
        _fail(str(error))
    equal, told = same(entry.recommendation, again), comparison(inputs, entry.recommendation, again)
    if json_:
        recorded = {"recorded": entry.recommendation, "replayed": again, "inputs": inputs}
        _print_json({"same": equal, "told": told, **recorded})
    else:
        console.print(f"recorded  {escape(explain.line(entry.recommendation))}", soft_wrap=True)
        console.print(f"replayed  {escape(explain.line(again))}", soft_wrap=True)
        for name, window in inputs.windows.items():
            values = ", ".join(number_text(value) for value in window.values)
            console.print(f"  {escape(name)}: {values or 'no samples'}", soft_wrap=True)
        console.print(f"[{'green' if equal else 'red'}]{escape(told)}[/]", soft_wrap=True)
    if not equal:
        raise typer.Exit(1)


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _text(value: object) -> str:
    """Lines are kept apart; whatever else would move a cursor is shown, not done."""
    return "?" if value is None else escape("\n".join(map(one_line, str(value).split("\n"))))
