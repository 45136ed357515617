"""All steps by name, and how a list of them is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from consumer.mapping.steps import fields, values
from consumer.mapping.steps.chain import MOST_SPLITS, Step
from consumer.mapping.steps.options import Apply, OptionError, Settings
from tidemark.foundation.settings_reader import parse_params
from tidemark.foundation.wording import did_you_mean


class StepType(Struct, frozen=True):
    """`build` makes the function of a step of its options and the settings. Raises OptionError."""

    options: type[Struct]
    build: Callable[[Any, Settings], Apply]


STEPS: Mapping[str, StepType] = {
    "unwrap": StepType(fields.Unwrap, fields.make_unwrap),
    "split": StepType(fields.SplitAt, fields.make_split),
    "filter": StepType(fields.Filter, fields.make_filter),
    "drop_fields": StepType(fields.DropFields, fields.make_drop_fields),
    "keep_fields": StepType(fields.KeepFields, fields.make_keep_fields),
    "rename": StepType(fields.Rename, fields.make_rename),
    "set": StepType(fields.Set, fields.make_set),
    "header": StepType(fields.Header, fields.make_header),
    "cast": StepType(values.Cast, values.make_cast),
    "time": StepType(values.Time, values.make_time),
    "flatten": StepType(fields.Flatten, fields.make_flatten),
    "hoist": StepType(fields.Hoist, fields.make_hoist),
    "mask": StepType(values.Mask, values.make_mask),
    "hash": StepType(values.Hash, values.make_hash),
}
"""The name of a step is also that of its first option."""

Problems = list[tuple[str, str]]
"""Where each problem is, below the list of steps, such as `[1].hash`; and its text."""


def read_steps(
    tables: Sequence[Mapping[str, Any]], settings: Settings, *, splits: int = 0
) -> tuple[list[Step], Problems]:
    """The steps of a list of tables, and all that is wrong in it: the wrong ones are left out. `splits` are before them."""
    steps: list[Step] = []
    problems: Problems = []
    for position, table in enumerate(tables):
        names = [name for name in table if name in STEPS]
        if len(names) != 1:
            problems.append((f"[{position}]", _which(table, names)))
            continue
        [name] = names
        options, wrong = parse_params(STEPS[name].options, table)
        if options is not None and not wrong:
            try:
                steps.append(Step(f"steps[{position}] {name}", STEPS[name].build(options, settings)))
            except OptionError as error:
                wrong = {error.option: error.text}
        problems += [(f"[{position}].{option}".rstrip("."), text) for option, text in wrong.items()]
    problems += _too_many(splits + sum("split" in table for table in tables))
    return steps, problems


def _which(table: Mapping[str, Any], names: Sequence[str]) -> str:
    if names:
        return f"found {' and '.join(names)} in one table; one step a table is accepted"
    keys = ", ".join(table) or "an empty table"
    hints = (did_you_mean(name, STEPS) for name in table)
    hint = next(filter(None, hints), f"accepted are {', '.join(STEPS)}")
    return f"found {keys}, which is no step; {hint}"


def _too_many(splits: int) -> Iterator[tuple[str, str]]:
    if splits > MOST_SPLITS:
        yield (
            "",
            f"found {splits} steps 'split'; {MOST_SPLITS} are accepted, in the hub and in a route together",
        )
