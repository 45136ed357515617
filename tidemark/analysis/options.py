"""The options that commands share, each with its name, help and default once, and groups of them as dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

from tidemark.analysis.errors import job_errors
from tidemark.foundation.app_settings import COMMAND_ROOT, load_settings

CONFIG = Path("tidemark.toml")
ROOT_FOLDER = COMMAND_ROOT

Since = Annotated[
    str | None, Option("--from", help="Only from this time on: ISO 8601, UTC; today, yesterday.")
]
Until = Annotated[str | None, Option("--to", help="Only before this time: ISO 8601, UTC; today, yesterday.")]
Allow = Annotated[
    list[str] | None,
    Option(help="NAME=NUMBER or NAME=SHARE that may be left out; more is exit status 3. Repeat per name."),
]
Root = Annotated[
    Path, Option("--root", help="Folder of .env and local.settings.json; the environment wins over both.")
]
Processes = Annotated[int | None, Option(min=1, show_default="one per core", help="Processes.")]
Grid = Annotated[Path, Argument(help="TOML file of the parameters to try; see docs/backtesting.md.")]
RunningConfig = Annotated[Path, Option(help="The configuration with the running policies.")]
Config = Annotated[Path, Option(help="The configuration with today's policy.")]
History = Annotated[
    Path,
    Argument(
        help="Arrivals as CSV or Parquet (`tidemark history pull`; t, arrivals), or a scaling log as JSON "
        "(`tidemark log --json`)."
    ),
]
TargetName = Annotated[
    str | None, Option(help="A target of tidemark.toml; needed where the history holds several.")
]
LogBeside = Annotated[Path | None, Option(help="Scaling log beside arrivals: shows what an instance serves.")]


def app_settings(root: Path) -> dict[str, str]:
    """The app's settings: local.settings.json and `.env` in `root`, then the environment. Raises InputError."""
    with job_errors():
        return load_settings(root)


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command for typer: a parameter whose type is a dataclass becomes the dataclass's fields, each an option."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        replaced = _options_of(groups[name]) if name in groups else [parameter]
        parameters += (option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in replaced)

    @wraps(command)
    def run(**given: Any) -> Any:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**given, **made)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options_of(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=kinds[field.name],
        )
        for field in fields(group)
    ]
