"""Whether it is one of the days of an iCalendar that is published at an address, as calendars of holidays are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec

from scaling.collectors.azure_entity import DEADLINE, Name
from scaling.collectors.number.asking import Asking, Number, NumberCollector
from scaling.collectors.number.endpoint import SETTING_NAME, address_problems
from scaling.ports import CollectError
from scaling.schedules.dates import parse_clock
from scaling.schedules.icalendar import MAX_BYTES, Event, days_of, parse_calendar
from scaling.schedules.timetable import zone_of
from tidemark.foundation.http.outward import trusted_hosts
from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.secrets.known import hide_address
from tidemark.foundation.wording import duration_text

FETCHED_EVERY = 86_400.0
"""Seconds. Holidays are announced months ahead, so a day late is soon enough."""

TRIED_AGAIN = 3_600.0
"""Seconds after a failed fetch, while there is a copy. Without one, each read tries."""

KEPT = 7 * 86_400.0
"""Seconds that the last good copy is used for. Chosen: a server that is down over the holidays is mended within a week."""

PATIENCE = 5.0
"""Seconds that an answer is waited for: within what a round of reads waits, so that the copy still counts in the same round."""

_log = logging.getLogger(__name__)


class CalendarCollector(NumberCollector):
    """1 on a day of the calendar, 0 on any other.

    The calendar is fetched once a day. While it cannot be, the last good copy counts, for a week and as long as the process lives;
    after that, and before the first fetch, the read fails: nobody knows then whether it is a holiday.
    """

    ROLE = "an address that is still valid, in the app setting"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`url_setting`: the app setting with the address, which is a secret. Days are those of `time_zone`, and begin at
        `day_begins`: at 12:00, a night's hours count to the day before.
        """

        url_setting: Name
        time_zone: str = "UTC"
        day_begins: str = "00:00"

        def problems(self) -> dict[str, str]:
            problems: dict[str, str] = {}
            if not SETTING_NAME.fullmatch(self.url_setting):
                problems["url_setting"] = (
                    "what is given is no name of an app setting; the address belongs there"
                )
            for option, parse, value in (
                ("time_zone", zone_of, self.time_zone),
                ("day_begins", parse_clock, self.day_begins),
            ):
                try:
                    parse(value)
                except ValueError as error:
                    problems[option] = str(error)
            return problems

        def refused(self, settings: Mapping[str, str]) -> dict[str, str]:
            """Why no read would call the address that the app setting holds, by the option."""
            url = _over_https(settings.get(self.url_setting, "").strip())
            named = f"app setting {self.url_setting}"
            return address_problems("url_setting", url, trusted_hosts(settings), named) if url else {}

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        url = _over_https(settings.get(params.url_setting, "").strip())
        if url:
            hide_address(url)
        host = _host(url)
        super().__init__(
            f"the calendar of {params.url_setting}", settings, endpoint=host, empty=None, deadline=deadline
        )
        self._params = params
        self._url = url
        self._zone = zone_of(params.time_zone)
        self._day_begins = timedelta(minutes=parse_clock(params.day_begins))
        self._events: tuple[Event, ...] = ()
        self._fetched: float | None = None
        self._tried: float | None = None

    @staticmethod
    def measured(params: Params, settings: Mapping[str, str]) -> dict[str, object]:
        return {"url_setting": settings.get(params.url_setting, "").strip()}

    @staticmethod
    def entity(params: Any) -> str:
        return f"calendar:{params.url_setting} {params.time_zone} {params.day_begins}"

    async def _number(self, client: Asking, now: float, /) -> Number:
        if self._is_due(now):
            self._tried = now  # also where the deadline of the round ends the fetch
            try:
                self._events = await self._fetch(client)
                self._fetched = now
            except Exception as error:
                if self._fetched is None:
                    raise
                _log.warning("%s; its last good copy counts", sanitize_line(self._explain(error)))
        if self._fetched is None or now - self._fetched > KEPT:
            raise CollectError(
                f"{self._label}: not read for {duration_text(KEPT)}, so its last good copy no longer counts"
            )
        local = datetime.fromtimestamp(now, self._zone).replace(tzinfo=None) - self._day_begins
        return float(days_of(self._events, local.date()))

    def _is_due(self, now: float) -> bool:
        if self._fetched is None or self._tried is None:
            return True
        wait = FETCHED_EVERY if self._tried == self._fetched else TRIED_AGAIN
        return not 0.0 <= now - self._tried < wait  # a clock that was set back begins anew

    async def _fetch(self, client: Asking) -> tuple[Event, ...]:
        if not self._url:
            raise CollectError(f"{self._label}: there is no app setting '{self._params.url_setting}'")
        headers = {"Accept": "text/calendar"}
        setting = f"app setting {self._params.url_setting}"
        data = await client.content(
            "GET", self._url, setting=setting, headers=headers, attempts=1, patience=PATIENCE, limit=MAX_BYTES
        )
        events = await asyncio.to_thread(parse_calendar, data)
        if (
            not events
        ):  # whole, so it counts; but who takes sharing back, or resets a key, may publish just this
            _log.warning("%s: it holds no event, so no day is one of it", self._label)
        return events


def _over_https(url: str) -> str:
    """What an address of a calendar to subscribe to, `webcal:`, means."""
    scheme, colon, rest = url.partition("://")
    return f"https://{rest}" if colon and scheme.casefold() in {"webcal", "webcals"} else url


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
