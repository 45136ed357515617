"""What a text of Azure means as a state: at rest, changing, or unknown. Pure.

A resource is at rest in three states, and changing in any other one; providers use some two dozen names for that. An
unknown name may mean either, so it holds a target as a change does, but not for ever
(`scaling.decision.seen.bounded_doubt`).
"""

from __future__ import annotations

from typing import Any

AT_REST = frozenset({"succeeded", "failed", "canceled"})
"""The states in which an operation, or a resource, is at rest; lower case."""

CHANGING = frozenset(
    {
        *(
            "accepted",
            "activating",
            "creating",
            "deleting",
            "inprogress",
            "migrating",
            "provisioning",
            "running",
        ),
        *("scaling", "starting", "stopping", "updating"),
    }
)
"""Names of a change in the enumerations of azure-mgmt-web, -compute, -appcontainers, -eventhub and -servicebus, lower case."""

STATE_CHARS = 60
"""Characters kept of an unknown name."""


def state_of(value: Any) -> tuple[bool, str]:
    """Whether a provisioning state is a change, and its name if it is unknown; a resource without one is at rest."""
    name = str(getattr(value, "value", value) or "")
    known = name.casefold()
    if not known or known in AT_REST:
        return False, ""
    return known in CHANGING, "" if known in CHANGING else name[:STATE_CHARS]


def switch_of(value: Any) -> tuple[bool, str]:
    """The same of what is true or false, as JSON or as text, such as whether a change of throughput is pending."""
    name = str(value)
    known = name.casefold()
    if known in {"true", "false", "none", ""}:
        return known == "true", ""
    return False, name[:STATE_CHARS]


def may_be_on(value: Any) -> bool:
    """Whether a switch is on, or unknown: something that may move a target counts as if it did."""
    return switch_of(value) != (False, "")
