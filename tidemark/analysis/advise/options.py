"""How a queue is served, and what is wanted of it: the options of `advise` and `seasons`, with and without Spark."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from typer import Option

from tidemark.analysis.advise.question import Options
from tidemark.analysis.errors import InputError
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.settings_reader import share


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """What an instance serves, and how many there may be."""

    service_rate: Annotated[
        float | None,
        Option(
            help="Messages per second of one busy instance.", show_default="estimated, where backlogs tell"
        ),
    ] = None
    concurrency: Annotated[
        float | None,
        Option(help="Messages one instance holds at once.", show_default="as the policy, or 16"),
    ] = None
    takes: Annotated[
        str | None,
        Option(
            help="How long a message takes, such as 30s. Two of --takes, --concurrency and --service-rate say the third.",
            show_default="concurrency by service rate",
        ),
    ] = None
    start_up: Annotated[
        str | None,
        Option(help="From asked-for to serving, such as 90s.", show_default="as the policy, or 90s"),
    ] = None
    minimum: Annotated[
        int | None, Option(min=0, help="Fewest instances.", show_default="as the policy, or 1")
    ] = None
    maximum: Annotated[
        int | None, Option(min=1, help="Most instances.", show_default="as the policy, or 100")
    ] = None
    metric: Annotated[
        str | None, Option(help="The policy's metric that is the queue; needed where there are several.")
    ] = None

    def read(self) -> Options:
        """Raises InputError naming the option that cannot be read."""
        given = {option.name: getattr(self, option.name) for option in fields(self)}
        for name, parse in (
            ("takes", _seconds),
            ("start_up", _whole_seconds),
            ("wait", _whole_seconds),
            ("late", _late),
        ):
            if given.get(name) is not None:
                try:
                    given[name] = parse(given[name])
                except ValueError as error:
                    raise InputError(f"--{name.replace('_', '-')}: {error}") from error
        for name in ("service_rate", "concurrency"):
            if given[name] is not None and not 0 < given[name] <= 1e6:
                raise InputError(
                    f"--{name.replace('_', '-')}: found {given[name]:g}; accepted are numbers above 0"
                )
        return Options(**given)


@dataclass(frozen=True, kw_only=True)
class AdviceOptions(QueueOptions):
    """And what is wanted of the service, and what it costs."""

    wait: Annotated[
        str | None,
        Option(help="What no message should wait longer than.", show_default="as the policy, or 60s"),
    ] = None
    late: Annotated[
        str | None, Option(help="But for this share of them.", show_default="as the policy, or 1%")
    ] = None
    price: Annotated[float | None, Option(min=0, help="Of one instance-hour, such as 0.20.")] = None
    currency: Annotated[str, Option(help="Shown behind prices, such as EUR.")] = ""


def _whole_seconds(text: str) -> float:
    duration = parse_duration(text)
    if duration < 1:
        raise ValueError(f"found {duration:g} s; a replay goes by whole seconds: 1s or more is accepted")
    return duration


def _seconds(text: str) -> float:
    duration = parse_duration(text)
    if duration <= 0:
        raise ValueError(f"found {duration:g} s; a duration above 0 is accepted, such as 30s")
    return duration


def _late(text: str) -> float:
    late = share(text)
    if not 0 < late < 1:
        raise ValueError(f"found {text!r}; accepted are shares above 0 and below 1, such as '1%' or 0.01")
    return late
