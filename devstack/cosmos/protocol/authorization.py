"""Who may call: the master key's signature, or a bearer token where that is switched on."""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from urllib.parse import unquote

from devstack.cosmos.protocol.errors import CosmosError

_AAD_FORBIDDEN = frozenset({"offers", "dbs", "colls"})  # beyond reading: the control plane's business


_SIGNED_AS = {
    "partitionkey": "colls"
}  # the SDKs sign the deletion of a partition key as what is in a container


class Authorization:
    """Verifies the `authorization` header. `key` is base64; `bearer` accepts any `type=aad` token."""

    def __init__(self, key: str, *, bearer: bool) -> None:
        self._key = b64decode(key)
        self._bearer = bearer

    def verify(self, method: str, kind: str, link: str, headers: Mapping[str, str]) -> None:
        """`kind` and `link` as they are signed. Raises CosmosError: 401, or 403 for what a token may not do."""
        given = unquote(headers.get("authorization", ""))
        if self._bearer and given.startswith("type=aad&"):
            if kind in _AAD_FORBIDDEN and (method != "GET" or kind == "offers"):
                raise CosmosError(
                    403,
                    f"The given request [{method} /{kind}] cannot be authorized by AAD token in data plane.",
                    substatus=5300,
                )
            return
        date = headers.get("x-ms-date", "").lower()
        http_date = "" if date else headers.get("date", "").lower()
        signed = f"{method.lower()}\n{_SIGNED_AS.get(kind, kind)}\n{link}\n{date}\n{http_date}\n"
        signature = b64encode(hmac.digest(self._key, signed.encode(), "sha256")).decode()
        if not hmac.compare_digest(given, f"type=master&ver=1.0&sig={signature}"):
            raise CosmosError(
                401,
                "The input authorization token can't serve the request. "
                f"The following payload was used to sign: {signed!r}",
            )
