"""The id of a resource of Azure, taken apart: the one parser of all that read such ids. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ID = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/?#%]+)"
    r"/providers/(?P<provider>[\w.]+)(?P<rest>(?:/[\w-]+/[^/]+)+)/?",
    re.IGNORECASE,
)
_ODD = re.compile("[?#%]")
EXAMPLE = "/subscriptions/<guid>/resourceGroups/<group>/providers/<Provider>/<type>/<name>"


class ResourceId(Struct, frozen=True):
    """What stands in an id. `parts` are kinds and names, from the provider's own downwards, at least one of them."""

    subscription: str
    group: str
    provider: str
    parts: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, *, example: str = EXAMPLE, odd_names: bool = False) -> ResourceId:
        """Reads an id whatever its case, with a slash or spaces at its end. Raises ValueError naming what was found and
        what is accepted.

        With `odd_names` a name may hold what has to be encoded in an address, as those of databases may.
        """
        match = _ID.fullmatch(text.strip())
        if match is None or (not odd_names and _ODD.search(match["rest"])):
            raise ValueError(f"found '{text}'; accepted is the full resource id {example}")
        if not _GUID.fullmatch(match["subscription"]):
            raise ValueError(f"found subscription '{match['subscription']}'; accepted is a GUID")
        words = match["rest"].split("/")
        parts = tuple(zip(words[1::2], words[2::2], strict=True))
        return cls(match["subscription"], match["group"], match["provider"], parts)

    @property
    def type(self) -> str:
        """With its provider, such as Microsoft.Compute/virtualMachines."""
        return "/".join([self.provider, *(kind for kind, _ in self.parts)])

    @property
    def name(self) -> str:
        return self.parts[-1][1]

    def require(self, *types: str, example: str) -> None:
        """Raises ValueError for a resource of another type."""
        if self.type.casefold() not in {accepted.casefold() for accepted in types}:
            raise ValueError(
                f"found a resource of type '{self.type}'; accepted is {' or '.join(types)}, as in {example}"
            )

    def __str__(self) -> str:
        below = "".join(f"/{kind}/{name}" for kind, name in self.parts)
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/{self.provider}{below}"
        )
