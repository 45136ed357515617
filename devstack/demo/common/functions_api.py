"""What the demo reads of the functions: their own HTTP API, as any operator would."""

from __future__ import annotations

from typing import Any, Self

import aiohttp

TIMEOUT = 10.0  # seconds
PAGE = 1000
LATEST = 40

Entry = dict[str, Any]
"""An entry of the decision log, or a target, as the API has it."""


class FunctionsApi:
    """The API of one target at `url`. Use as an async context manager.

    All raise aiohttp.ClientError for every answer but 200, TimeoutError after ten seconds.
    """

    def __init__(self, url: str, target: str) -> None:
        self._url = url
        self._target = target
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def target(self) -> Entry:
        """The target as it stands, empty before anything is known of it."""
        for target in (await self._read("status"))["targets"]:
            if target["target"] == self._target:
                entry: Entry = target
                return entry
        return {}

    async def latest(self) -> list[Entry]:
        """The newest entries of the log, the newest first."""
        entries: list[Entry] = (await self._read("log", target=self._target, limit=str(LATEST)))["entries"]
        return entries

    async def log(self, since: float) -> list[Entry]:
        """All entries since then, the oldest first."""
        entries: list[Entry] = []
        parameters = {"target": self._target, "limit": str(PAGE), "since": str(since)}
        while True:
            page = await self._read("log", **parameters)
            entries += page["entries"]
            if page["continuation"] is None:
                return entries[::-1]
            parameters["continuation"] = page["continuation"]

    async def _read(self, what: str, **parameters: str) -> dict[str, Any]:
        async with self._session.get(
            f"{self._url}/scaling/{what}", params=parameters, raise_for_status=True
        ) as answer:
            view: dict[str, Any] = await answer.json()
            return view
