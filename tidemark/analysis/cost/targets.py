"""Which resource is whose bill: targets from tidemark.toml, from options, and from the log. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.analysis.cost.account import INSTANCE, REQUEST_UNITS, Billed
from tidemark.analysis.cost.charges import billed_id
from tidemark.analysis.errors import InputError

COSMOS = "cosmos_throughput"

_SETTING = re.compile(r"%(\w+)%")


class Options(Struct, frozen=True):
    """What the command line says. `hold` in seconds; `prices` of an instance-hour, or of 100 RU/s for an hour."""

    resources: Mapping[str, str] = {}
    prices: Mapping[str, float] = {}
    ru_targets: Collection[str] = frozenset()
    used: str | None = None
    hold: float = 900.0
    amount: str | None = None


def resource_option(text: str) -> tuple[str, str]:
    """Target and resource id. Raises InputError."""
    target, _, resource = text.partition("=")
    if not target or not resource:
        raise InputError(f"--resource is '{text}'; accepted: TARGET=VALUE")
    return target, resource


def billed_targets(
    targets: Targets | None, settings: Mapping[str, str], options: Options
) -> dict[str, Billed]:
    """The targets that configuration and options name. An app setting that is not set stands for itself."""
    names = dict.fromkeys(
        (
            *(() if targets is None else targets.names),
            *options.resources,
            *options.prices,
            *options.ru_targets,
        )
    )
    return {name: _billed(name, targets, settings, options) for name in names}


def resources_of(billed: Mapping[str, Billed]) -> frozenset[str]:
    """What to look for in an export. A charge without a resource, such as a purchase, is of no target, and of none whose
    resource nobody says.
    """
    return frozenset(target.resource for target in billed.values() if target.resource)


def unnamed(target: str, options: Options) -> Billed:
    """A target that only the log knows: nobody says which resource it is."""
    return Billed(target, hold=options.hold, used=options.used)


def _billed(name: str, targets: Targets | None, settings: Mapping[str, str], options: Options) -> Billed:
    table = targets.table(name) if targets is not None and name in targets.names else {}
    written = options.resources.get(name) or str(table.get("resource_id", ""))
    resource = _SETTING.sub(lambda match: settings.get(match[1], match[0]), written)
    owner = billed_id(resource)
    metered = table.get("scaler") == COSMOS or name in options.ru_targets
    return Billed(
        name,
        REQUEST_UNITS if metered else INSTANCE,
        owner,
        owner != resource.strip().rstrip("/").lower(),
        options.hold,
        options.prices.get(name),
        options.used,
    )
