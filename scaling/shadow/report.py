"""The comparison of shadows with what decides, for a terminal: a table, and one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.markup import escape
from rich.table import Table

from scaling.config.policy import Policy
from scaling.shadow.comparison import ShadowView
from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.wording import did_you_mean, duration_text, number_text, percent_text, time_text


def those_with_shadows(policies: Mapping[str, Policy], target: str | None) -> dict[str, Policy]:
    """The targets to show. Raises ValueError for a `target` that is not configured, or has no shadow."""
    if target is not None:
        require_known(target, policies)
    return {
        name: policy
        for name, policy in policies.items()
        if policy.spec.shadow is not None and target in {None, name}
    }


def require_known(target: str, configured: Iterable[str]) -> None:
    """Raises ValueError for a `target` that is not configured."""
    names = list(configured)
    if target not in names:
        known = did_you_mean(target, names, f"configured are {', '.join(names[:20])}")
        raise ValueError(f"found '{target}'; {known}")


def show(console: Console, views: Mapping[str, ShadowView]) -> None:
    """Prints the table, and for each target whether to switch."""
    if not views:
        console.print(
            "no shadow: add a table [targets.NAME.shadow] with rules of its own to tidemark.toml",
            markup=False,
        )
        return
    console.print(_table(views))
    for name, view in views.items():
        style = "green" if view.switch else "default"
        console.print(f"{_cell(name)}: [{style}]{_cell(view.advice)}[/]", soft_wrap=True)
        for note in view.notes:
            console.print(f"  [dim]{_cell(note)}[/]", soft_wrap=True)


def _table(views: Mapping[str, ShadowView]) -> Table:
    units = " or ".join(sorted({view.unit for view in views.values()}))
    table = FittedTable("target", "rules", "now", "wanted", units, "late", "agree", "since")
    for name, view in views.items():
        since = "" if view.since is None else f"{time_text(view.since)}, {duration_text(view.seconds)} seen"
        decides, simulated = (
            ("shadow", "configured") if view.simulated == "configured" else ("configured", "shadow")
        )
        hours = number_text(view.live_hours) if view.seconds else "?"
        table.add_row(*map(_cell, (name, decides, "", "", hours, _share(view.live_late), "", since)))
        simulated, hours = (
            f"{simulated} (simulated)",
            number_text(view.simulated_hours) if view.seconds else "?",
        )
        wishes = (view.current, view.desired, hours, _share(view.simulated_late), _share(view.agreed))
        table.add_row(*map(_cell, ("", simulated, *wishes, "")))
    return table


def _share(share: float | None) -> str:
    return "?" if share is None else percent_text(share)


def _cell(value: object) -> str:
    return "?" if value is None else escape(one_line(str(value)))
