"""The id of a resource of any type, taken apart. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ID = re.compile(
    r"/subscriptions/(?P<subscription>[^/?#%]+)(?P<group>/resourceGroups/[^/?#%]+)"
    r"/providers/(?P<provider>[\w.]+)(?P<rest>(?:/[\w-]+/[^/?#%]+)+)/?",
    re.IGNORECASE,
)
_EXAMPLE = "/subscriptions/<guid>/resourceGroups/<group>/providers/<Provider>/<type>/<name>"


class ResourceId(Struct, frozen=True):
    """The id of a resource, and what stands in it: `type` with its provider, such as Microsoft.Compute/virtualMachines."""

    text: str
    subscription: str
    group: str
    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> ResourceId:
        """Raises ValueError naming what was found and what is accepted."""
        match = _ID.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"found '{text}'; accepted is the full resource id {_EXAMPLE}")
        if not _GUID.fullmatch(match["subscription"]):
            raise ValueError(f"found subscription '{match['subscription']}'; accepted is a GUID")
        kinds, names = match["rest"].split("/")[1::2], match["rest"].split("/")[2::2]
        whole = text.strip().rstrip("/")
        scope = f"/subscriptions/{match['subscription']}{match['group']}"
        return cls(whole, match["subscription"], scope, "/".join([match["provider"], *kinds]), names[-1])
