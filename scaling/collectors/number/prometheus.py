"""One number by an instant PromQL query, of any Prometheus or of Azure's managed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from scaling.collectors.azure_entity import DEADLINE, Name
from scaling.collectors.number.asking import CLOUDS, Asking, Number, digest, number
from scaling.collectors.number.endpoint import EndpointCollector, EndpointParams, headers_of
from tidemark.foundation.http.outward import trusted_hosts
from tidemark.foundation.sanitize import sanitize_line

OPTION = "the option 'url' of a prometheus metric"
_AZURE = tuple(f"prometheus.monitor.azure.{cloud}" for cloud in CLOUDS)


class PrometheusCollector(EndpointCollector):
    """A scalar, or a vector of exactly one element; one request a read. NaN and infinity are no values."""

    ROLE = "the role 'Monitoring Data Reader' on the Azure Monitor workspace, or the right header"

    class Params(EndpointParams, frozen=True, kw_only=True):
        """`url` is where /api/v1/query is below. With `azure` the app's identity asks. `headers` as in http_json; `empty` is
        what a vector of no element counts as.
        """

        query: Name
        azure: bool = False

        def problems(self) -> dict[str, str]:
            problems = EndpointParams.problems(self)
            if self.azure and any(name.casefold() == "authorization" for name in self.headers):
                problems["headers"] = "found Authorization beside azure = true, which makes it"
            if "?" in self.url or "#" in self.url:
                problems["url"] = "found a query in it; accepted is the address that /api/v1/query is below"
            return problems

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        super().__init__(_short(params.query), params, settings, deadline=deadline)
        cloud = next((domain for domain in _AZURE if self.endpoint.endswith(f".{domain}")), _AZURE[0])
        self._scope = f"https://{cloud}/.default" if params.azure else ""
        self._params = params

    @staticmethod
    def entity(params: Params) -> str:
        return f"prometheus:{urlsplit(params.url).hostname} {_short(params.query)} {digest(params)}"

    async def _number(self, client: Asking, now: float, /) -> Number:
        params, host = self._params, self.endpoint
        trusted = trusted_hosts(self._settings) & {host, urlsplit(params.url).netloc.casefold()}
        if params.azure and not trusted and not host.endswith(tuple(f".{domain}" for domain in _AZURE)):
            raise ValueError(f"{OPTION} is no host of *.{_AZURE[0]}; a token is sent to no other")
        url = f"{params.url.rstrip('/')}/api/v1/query?{urlencode({'query': params.query})}"
        headers = headers_of(params.headers, self._settings)
        return value_of(await client.document("GET", url, setting=OPTION, headers=headers, scope=self._scope))


def value_of(document: Any) -> Number:
    """The one value of an answer; None for a vector without elements. Raises ValueError for anything else: a part of the
    truth, too, which an answer with warnings may be.
    """
    if not isinstance(document, Mapping) or document.get("status") != "success":
        raise ValueError("the answer is not one of Prometheus that succeeded")
    if warnings := document.get("warnings"):
        raise ValueError(f"the answer comes with warnings: {sanitize_line(str(warnings))[:200]}")
    data = document.get("data")
    kind, result = (data.get("resultType"), data.get("result")) if isinstance(data, Mapping) else (None, None)
    if kind == "vector" and isinstance(result, list):
        if not result:
            return None
        if len(result) > 1:
            labels = [sample.get("metric") for sample in result[:2] if isinstance(sample, Mapping)]
            raise ValueError(
                f"the query gives {len(result)} series, {sanitize_line(str(labels))[:160]}, ...; accepted is one: sum() or max() "
                "makes it one"
            )
        result = result[0].get("value") if isinstance(result[0], Mapping) else None
    elif kind != "scalar":
        raise ValueError(
            f"the query gives a {sanitize_line(str(kind))[:40]}; accepted are a scalar, and a vector of one element"
        )
    if not isinstance(result, list) or len(result) != 2 or result[1] is None:
        raise ValueError(f"found the sample {sanitize_line(str(result))[:60]}; accepted is [time, value]")
    return number(result[1], "the value", in_text=True)


def _short(query: str) -> str:
    line = " ".join(query.split())
    return line if len(line) <= 80 else f"{line[:79]}…"
