"""One number from a KQL query on a Log Analytics workspace, or on the logs of any resource (Application Insights, say)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from scaling.collectors.azure_entity import DEADLINE, Name
from scaling.collectors.number.asking import Asking, Number, NumberCollector, cloud_of, digest, number
from scaling.collectors.number.metric_answers import newest_end
from scaling.resource_id import ResourceId
from tidemark.foundation.durations import duration_within, parse_duration
from tidemark.foundation.errors import problems_of
from tidemark.foundation.sanitize import sanitize_line

ENDPOINT = "AZURE_LOGS_ENDPOINT"
_SERVICES = {
    "com": "https://api.loganalytics.io",
    "us": "https://api.loganalytics.us",
    "cn": "https://api.loganalytics.azure.cn",
}
DAY = 86_400.0

WAIT = 10
"""Seconds after which the service gives a query up."""

_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class LogQueryCollector(NumberCollector):
    """The one value of the one row that a query gives; one request a read."""

    ROLE = "the role 'Log Analytics Reader' on the workspace, or 'Monitoring Reader' on the resource"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Either `workspace` (its id, a GUID) or `resource_id`. `timespan` is how far back the query looks, in seconds or a
        text such as "30m"; `empty` is what no row, or a row without a value, counts as. A query for what came `delay` ago says so,
        and one that counts a time range how long that is (`grain`): it has to count the newest whole one that ended `delay` ago.
        """

        workspace: str = ""
        resource_id: str = ""
        query: Name
        timespan: float | str = 3600.0
        delay: float | str = 0.0
        grain: float | str = 0.0
        empty: float | None = None

        def problems(self) -> dict[str, str]:
            problems: dict[str, str] = {}
            if bool(self.workspace) == bool(self.resource_id):
                problems["workspace"] = "give either 'workspace', the id of a workspace, or 'resource_id'"
            if self.workspace and not _GUID.fullmatch(self.workspace):
                problems["workspace"] = f"found '{self.workspace}'; accepted is the workspace's id, a GUID"
            return problems | problems_of(
                resource_id=lambda: self.resource_id and ResourceId.parse(self.resource_id),
                timespan=lambda: duration_within(self.timespan, 60.0, 30 * DAY, "1m to 30d"),
                delay=lambda: duration_within(self.delay, 0.0, DAY, "at most 1d"),
                grain=lambda: duration_within(self.grain, 0.0, DAY, "at most 1d"),
            )

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        self._params = params
        service = _SERVICES[cloud_of(settings)]
        self._scope = f"{service}/.default"
        self._address = settings.get(ENDPOINT, "").strip().rstrip("/") or service
        place = params.workspace or params.resource_id.strip().rstrip("/").rpartition("/")[2]
        # A workspace, and a person or an identity, may ask a few queries at a time only.
        super().__init__(
            f"log query of '{place}'", settings, endpoint=self._address, empty=params.empty, deadline=deadline
        )

    @staticmethod
    def measured(params: Params, _: Mapping[str, str]) -> dict[str, object]:
        return {
            "resource_id": params.resource_id.strip().rstrip("/").casefold(),
            "timespan": parse_duration(params.timespan),
            "grain": parse_duration(params.grain),
        }

    @staticmethod
    def entity(params: Params) -> str:
        return f"log_query:{params.workspace or params.resource_id.rpartition('/')[2]} {digest(params)}"

    @staticmethod
    def timing(params: Params) -> tuple[float, float]:
        """Seconds that a sample counts, and how old it is at least."""
        return parse_duration(params.grain), parse_duration(params.delay)

    def _time_of(self, now: float) -> float:
        grain, delay = self.timing(self._params)
        return float(newest_end(now, delay, int(grain))) if grain >= 1.0 else now - delay

    def _open(self) -> Asking:
        return Asking(self._settings, self._address) if ENDPOINT in self._settings else Asking(self._settings)

    async def _number(self, client: Asking, now: float, /) -> Number:
        params = self._params
        place = (
            f"/workspaces/{params.workspace}" if params.workspace else params.resource_id.strip().rstrip("/")
        )
        document = await client.document(
            "POST",
            f"{self._address}/v1{place}/query",
            setting=ENDPOINT,
            headers={"Prefer": f"wait={WAIT}"},
            body={"query": params.query, "timespan": f"PT{parse_duration(params.timespan):.0f}S"},
            scope=self._scope,
        )
        return value_of(document)


def value_of(document: Any) -> Number:
    """The one value of the one row; None for no row, or a null. Raises ValueError for anything else, and for a result that
    the service itself calls partial.
    """
    if isinstance(document, Mapping) and (error := document.get("error")):
        words = error.get("message") if isinstance(error, Mapping) else error
        raise ValueError(f"the result is not whole: {sanitize_line(str(words))[:200]}")
    tables = document.get("tables") if isinstance(document, Mapping) else None
    if not isinstance(tables, list) or not tables or not isinstance(tables[0], Mapping):
        raise ValueError("the answer holds no table")
    rows = tables[0].get("rows") or []
    if not rows:
        return None
    row = rows[0] if isinstance(rows, list) else None
    if len(rows) > 1 or not isinstance(row, list) or len(row) != 1:
        columns = len(row) if isinstance(row, list) else 0
        raise ValueError(
            f"the query gives {len(rows)} rows of {columns} columns; accepted is one row of one column"
        )
    return number(row[0], "the value", in_text=True)  # decimals are texts, and so is what is not finite
