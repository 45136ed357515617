"""What a text of Azure says of a state: at rest, changing, or nobody knows. Pure.

Resource Manager calls a resource at rest in three states, and changing in any other one; providers use some two dozen names
for that. A name that is on neither list may be either, so it holds a target as a change does, but not for ever
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
"""Characters kept of a name that nobody knows."""


def state_of(told: Any) -> tuple[bool, str]:
    """Whether a provisioning state is a change, and its name where nobody knows; a resource that tells none is at rest."""
    name = str(getattr(told, "value", told) or "")
    known = name.casefold()
    if not known or known in AT_REST:
        return False, ""
    return known in CHANGING, "" if known in CHANGING else name[:STATE_CHARS]


def switch_of(told: Any) -> tuple[bool, str]:
    """The same of what is true or false, as JSON or as text, such as whether a change of throughput is pending."""
    name = str(told)
    known = name.casefold()
    if known in {"true", "false", "none", ""}:
        return known == "true", ""
    return False, name[:STATE_CHARS]


def may_be_on(told: Any) -> bool:
    """True but for what is off or not told: where something else may move a target, an unknown value is taken for that."""
    return switch_of(told) != (False, "")
