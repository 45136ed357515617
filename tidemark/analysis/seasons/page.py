"""The page of the profiles."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from tidemark.analysis.plots import BLUE, GREEN, INK, new_figure
from tidemark.analysis.report import Report
from tidemark.analysis.seasons.profile import HOURS, Profile, error_text
from tidemark.analysis.seasons.tables import NOT_WORTH, text_of
from tidemark.foundation.wording import duration_text, percent_text

DRAWN = 5
"""Targets with pictures of their own: those whose need differs most by the hour. Chosen: a page to scroll through."""

HEADERS = ("target", "weeks", "held out", "error", "one floor's", "too low", "idle a week", "schedule")


def report_of(profiles: Sequence[Profile]) -> Report:
    names = [profile.target for profile in profiles]
    what = names[0] if len(names) == 1 else f"{len(names):,} targets"
    report = Report("Seasons", f"{what}: instances needed by the hour of the week, and a schedule of them")
    report.facts(
        {"targets": f"{len(names):,}", "come by the clock": f"{sum(profile.worth for profile in profiles):,}"}
    )
    report.table(
        HEADERS,
        [_line(profile) for profile in profiles],
        caption="Errors on the held-out weeks, in instances",
    )
    for number, profile in enumerate(drawn(profiles)):
        _show(report, profile, number)
    report.heading("How it is worked out")
    report.text(MODEL)
    if any(profile.worth for profile in profiles):
        report.next_step(
            "when a schedule above is in tidemark.toml: what is wrong with it, and whether it flaps",
            "tidemark",
            "lint",
        )
    return report


def drawn(profiles: Sequence[Profile]) -> list[Profile]:
    """The targets with pictures, by name."""
    most = sorted(profiles, key=lambda profile: (-(profile.error.flat - profile.error.mean), profile.target))[
        :DRAWN
    ]
    return sorted(most, key=lambda profile: profile.target)


def _line(profile: Profile) -> tuple[object, ...]:
    error = profile.error
    return (
        profile.target,
        profile.weeks,
        len(profile.held_out),
        error.mean,
        error.flat,
        percent_text(error.short, 0),
        f"{error.idle:,.0f} h",
        "yes" if profile.worth else "no",
    )


def _show(report: Report, profile: Profile, number: int) -> None:
    report.heading(profile.target)
    report.text(f"{error_text(profile).capitalize()}.")
    report.figure(
        _week(profile),
        caption=f"The week, Monday first, by the clock of {profile.zone}: floors, the usual need, and the held-out weeks.",
        name=f"week-{number}",
    )
    if text := text_of(profile):
        lead = duration_text(profile.lead)
        report.code(
            text,
            language="toml",
            caption=f"For tidemark.toml, beside the target's other rules; {lead} earlier, to start",
        )
    else:
        report.text(f"{NOT_WORTH.capitalize()}.")
    report.text("\n\n".join(f"{note[0].upper()}{note[1:]}." for note in profile.notes))


def _week(profile: Profile) -> Figure:
    figure, (axes,) = new_figure(height=3.6)
    hours = range(HOURS + 1)  # to the end of the last
    for number, week in enumerate(profile.held_out):
        axes.plot(hours[:-1], week, color=INK, alpha=0.35, linewidth=0.7, label="" if number else "held out")
    axes.plot(hours[:-1], profile.usual, color=BLUE, linewidth=1.1, label="usual need")
    axes.step(
        hours, [*profile.floors, profile.floors[-1]], where="post", color=GREEN, linewidth=1.4, label="floor"
    )
    axes.set_xticks(range(0, HOURS, 24), ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
    axes.set_ylabel("instances")
    # Above the plot: lines are everywhere below.
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    return figure


MODEL = (
    "An hour needs as many instances as serve its busiest quarter. The floor of an hour is what is enough in the asked share of the "
    "weeks; days share their hours where weeks that are left out are foretold as well, and a day has six floors at most. The newest "
    "quarter of the weeks is held out: nothing was learned from it, and the errors are of it.\n\n"
    "A floor only keeps instances there: the target's other rules go on above it. A rule `service_level` learns the minutes of the "
    "hour by itself; what it cannot know are weeks that are not in the history.\n\n"
    "Holidays, and months that differ from each other, are not in it."
)
