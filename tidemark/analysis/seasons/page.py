"""The page of the profiles."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from tidemark.analysis.plots import BLUE, GREEN, INK, new_figure
from tidemark.analysis.report import Report
from tidemark.analysis.seasons.profile import HOURS, Profile, error_text
from tidemark.analysis.seasons.tables import NOT_WORTH, text_of
from tidemark.foundation.wording import duration_text

DRAWN = 5
"""Targets with pictures of their own: those whose need differs most by the hour. Chosen: a page to scroll through."""

HEADERS = ("target", "weeks", "held out", "error", "one floor's", "too low", "idle a week", "schedule")


def report_of(profiles: Sequence[Profile]) -> Report:
    names = [each.target for each in profiles]
    what = names[0] if len(names) == 1 else f"{len(names):,} targets"
    report = Report("Seasons", f"{what}: instances needed by the hour of the week, and a schedule of them")
    report.facts(
        {"targets": f"{len(names):,}", "come by the clock": f"{sum(each.worth for each in profiles):,}"}
    )
    report.table(
        HEADERS, [_line(each) for each in profiles], caption="Errors on the held-out weeks, in instances"
    )
    for number, each in enumerate(drawn(profiles)):
        _show(report, each, number)
    report.heading("How it is worked out")
    report.text(MODEL)
    if any(each.worth for each in profiles):
        report.next_step(
            "when a schedule above is in tidemark.toml: what is wrong with it, and whether it flaps",
            "tidemark",
            "lint",
        )
    else:
        report.next_step("what other policies would make of this load", "tidemark", "advise", "history.csv")
    return report


def drawn(profiles: Sequence[Profile]) -> list[Profile]:
    """The targets with pictures, by name."""
    most = sorted(profiles, key=lambda each: (-(each.error.flat - each.error.mean), each.target))[:DRAWN]
    return sorted(most, key=lambda each: each.target)


def _line(found: Profile) -> tuple[object, ...]:
    error = found.error
    return (
        found.target,
        found.weeks,
        len(found.held_out),
        error.mean,
        error.flat,
        f"{error.short:.0%}",
        f"{error.idle:,.0f} h",
        "yes" if found.worth else "no",
    )


def _show(report: Report, found: Profile, number: int) -> None:
    report.heading(found.target)
    report.text(f"{error_text(found).capitalize()}.")
    report.figure(
        _week(found),
        caption=f"The week, Monday first, by the clock of {found.zone}: floors, the usual need, and the held-out weeks.",
        name=f"week-{number}",
    )
    if text := text_of(found):
        lead = duration_text(found.lead)
        report.code(
            text,
            language="toml",
            caption=f"For tidemark.toml, beside the target's other rules; {lead} earlier, to start",
        )
    else:
        report.text(f"{NOT_WORTH.capitalize()}.")
    report.text("\n\n".join(f"{note[0].upper()}{note[1:]}." for note in found.notes))


def _week(found: Profile) -> Figure:
    figure, (axes,) = new_figure(height=3.6)
    hours = range(HOURS)
    for number, week in enumerate(found.held_out):
        axes.plot(hours, week, color=INK, alpha=0.35, linewidth=0.7, label="" if number else "held out")
    axes.plot(hours, found.usual, color=BLUE, linewidth=1.1, label="usual need")
    axes.step(hours, found.floors, where="post", color=GREEN, linewidth=1.4, label="floor")
    axes.set_xticks(range(0, HOURS, 24), ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
    axes.set_ylabel("instances")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small", loc="upper right")
    return figure


MODEL = (
    "An hour needs as many instances as serve its busiest quarter. The floor of an hour is what is enough in the asked share of the "
    "weeks; days share their hours where weeks that are left out are foretold as well, and a day has six floors at most. The newest "
    "quarter of the weeks is held out: nothing was learned from it, and the errors are of it.\n\n"
    "A floor only keeps instances there: the target's other rules go on above it. A rule `service_level` learns the minutes of the "
    "hour by itself; what it cannot know are weeks that it has not lived through.\n\n"
    "Holidays, and months that differ from each other, are not in it."
)
