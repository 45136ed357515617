"""How Azure lets things be called, so that a name that nothing can have is found before anything is read.

The lengths and characters are those of Microsoft's "Naming rules and restrictions for Azure resources". Where a service is known to
take more (`$` and `~` in names that JMS clients make, letters of other alphabets), so do these.
"""

from __future__ import annotations

import re

from msgspec import Struct

from tidemark.foundation.sanitize import shorten

WILD = "*?"
"""In a pattern, `*` stands for any characters, `?` for one."""


class NameRule(Struct, frozen=True):
    """What a name may be: `characters` of a class of a regular expression, `least` to `most` of them, as a whole in the form `shape`.

    Where there are `subqueues`, the name of one may follow, such as `/$deadletterqueue`.
    """

    characters: str
    most: int
    words: str
    least: int = 1
    shape: str = ".*"
    subqueues: bool = False

    def problem(self, name: str) -> str | None:
        """What is wrong with a name, in words."""
        form = rf"(?=[{self.characters}]{{{self.least},{self.most}}}\Z){self.shape}"
        own = name.partition("/$")[0] if self.subqueues else name
        return None if re.fullmatch(form, own, re.DOTALL) else self._found(name)

    def pattern_problem(self, pattern: str) -> str | None:
        """What is wrong with a pattern of names, in words. Upper and lower case are the same there."""
        if re.fullmatch(rf"[{WILD}{self.characters}]{{1,{self.most}}}", pattern, re.IGNORECASE):
            return None
        return f"{self._found(pattern)}; in a pattern also * for any of them, and ? for one"

    def _found(self, name: str) -> str:
        return f"found '{shorten(name, 80)}'; accepted are {self.words}"


_LOWER = r"[a-z0-9](-?[a-z0-9])*"
_OF_STORAGE = "3 to 63 lower-case letters, digits and single hyphens between them"

ENTITY = NameRule(
    r"\w.~/$-",
    260,
    "1 to 260 letters, digits and . - _ / with no / at an end",
    shape=r"(?!/).*(?<!/)",
    subqueues=True,
)
"""A queue or topic of Service Bus."""

SUBSCRIPTION = NameRule(r"\w.~$-", 50, "1 to 50 letters, digits and . - _", subqueues=True)
EVENT_HUB = NameRule(r"\w.-", 256, "1 to 256 letters, digits and . - _")
CONSUMER_GROUP = NameRule(r"\w.$-", 50, "1 to 50 letters, digits and . - _")
STORAGE_QUEUE = NameRule("a-z0-9-", 63, _OF_STORAGE, least=3, shape=_LOWER)
CONTAINER = NameRule("a-z0-9$-", 63, _OF_STORAGE, least=3, shape=rf"\$(root|web|logs)|{_LOWER}")
TABLE_NAME = NameRule(
    "A-Za-z0-9", 63, "3 to 63 letters and digits, a letter first", least=3, shape="[A-Za-z].*"
)


def problems_of_names(**checks: str | None) -> dict[str, str]:
    """Those of these problems, by option, that there are."""
    return {option: problem for option, problem in checks.items() if problem is not None}
