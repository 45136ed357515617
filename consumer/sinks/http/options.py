"""A sink to a web service."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urljoin

from msgspec import Struct

from consumer.mapping.sources import parse_source
from consumer.model import Batch, Outcome, Record, Routes, Stream, Write, WriteResult
from consumer.options import BatchLimits
from consumer.sinks.http.requests import (
    SENDING,
    RequestMapper,
    UrlTemplate,
    body_of,
    idempotency_key,
    result_of,
)
from consumer.sinks.types import SinkContext, SinkType, refuse
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.foundation.http.outward import Outward, check_address, trusted_hosts
from tidemark.foundation.secrets.known import hide_text
from tidemark.foundation.tracing.spans import current_header

MAX_ANSWER = 4096
"""Bytes of an answer that are read, for the reason of a refusal."""
_METHODS = ("POST", "PUT", "PATCH")


class HttpOptions(Struct, frozen=True):
    """The service, and how documents are sent to it."""

    url: str
    """An https address. `{$.id}` and `{@sequence_number}` are replaced by values of the document and the event."""
    method: str = "POST"
    batch: int = 1
    """Documents in a request. 1 sends each as an object; more send arrays, and need a url without values."""
    key: str = "@partition_key"
    """The source of what keeps its order, such as `$.id`: documents of equal values are sent one after the other. '' for none."""
    headers: dict[str, str] = {}
    secret_headers: dict[str, str] = {}
    """Headers whose values are secrets: the name of the header, and the name of the setting with its value."""
    idempotency_header: str = "Idempotency-Key"
    """The header with a value that is equal for each time that the same documents are sent together; '' for none."""
    timeout: str | float = 30.0
    """Seconds, or a duration such as 30s, for one request."""
    requests: int = 8
    """Requests at a time."""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        counts = {"batch": self.batch, "requests": self.requests}
        problems = [f"{name} is {value}; accepted: 1 or more" for name, value in counts.items() if value < 1]
        if self.method not in _METHODS:
            problems.append(f"method is '{self.method}'; accepted: {', '.join(_METHODS)}")
        refuse(
            problems, self._check_url, self._check_timeout, lambda: self.key and parse_source("key", self.key)
        )

    def _check_url(self) -> None:
        if not UrlTemplate(self.url).is_fixed and self.batch > 1:
            raise SettingsError(
                f"batch is {self.batch}, and the url has values of a document; accepted: batch = 1, or a fixed url"
            )

    def _check_timeout(self) -> None:
        if parse_duration(self.timeout) <= 0:
            raise SettingsError("timeout is 0; accepted: more")


class HttpSink:
    """One lane. A redirect is never followed: it would carry secrets and documents to another place."""

    transactional = False

    def __init__(
        self,
        mapper: RequestMapper,
        stream: Stream,
        options: HttpOptions,
        headers: Mapping[str, str],
        outward: Outward,
        timeout: float,
    ) -> None:
        self._mapper = mapper
        self._stream = stream
        self._options = options
        self._origin = urljoin(options.url, "/")
        self._headers = {"Content-Type": "application/json", **headers}
        self._outward = outward
        self._timeout = timeout
        self._permits = asyncio.Semaphore(options.requests)

    async def open(self) -> Routes:
        """Sends nothing: what a service does with a request that nobody meant is unknown."""
        return await self.routes()

    async def ask(self) -> None:
        """Whether anything answers at the host, with any status; without the secrets."""
        await self._outward.ask(
            "HEAD", self._origin, setting="the url of the sink", timeout=self._timeout, limit=0
        )

    async def routes(self) -> Routes:
        """A batch of the consumer is one round of requests, so that no retry waits for more than that."""
        options = self._options
        batches = BatchLimits(operations=options.batch * options.requests, concurrency=2)
        return Routes(appends=options.method != "PUT", batches=batches)

    def prepare(self, write: Write) -> Record:
        return self._mapper.prepare(write)

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        size = self._options.batch
        parts = [batch.records[start : start + size] for start in range(0, len(batch.records), size)]
        answers = await asyncio.gather(*(self._send(part, deadline) for part in parts))
        return [result for answer in answers for result in answer]

    async def _send(self, records: Sequence[Record], deadline: float) -> Sequence[WriteResult]:
        result = await self._request(records, deadline)
        if result.outcome is not Outcome.REJECT or len(records) == 1:
            return [result] * len(records)
        # One document may be at fault for all: each is sent alone, and the faulty one is rejected.
        return [await self._request([record], deadline) for record in records]

    async def _request(self, records: Sequence[Record], deadline: float) -> WriteResult:
        options, headers = self._options, {**current_header(), **self._headers}
        if options.idempotency_header:
            headers[options.idempotency_header] = idempotency_key(self._stream, records)
        try:
            async with asyncio.timeout_at(deadline), self._permits:
                answer = await self._outward.ask(
                    options.method,
                    records[0].partition_key,
                    setting="the url of the sink",
                    headers=headers,
                    body=body_of(records, is_list=options.batch > 1),
                    timeout=self._timeout,
                    limit=MAX_ANSWER,
                    cut=True,
                )
        except TimeoutError:
            return WriteResult(Outcome.RETRY, reason="no answer in time; the outcome is unknown")
        except TidemarkError as error:
            return WriteResult(Outcome.RETRY, reason=str(error))
        return result_of(answer.status, answer.headers, answer.body, retry_after(answer.headers))

    async def aclose(self) -> None:
        await self._outward.aclose()


_SETTING = re.compile(r"[A-Za-z_]\w*")
"""A name of a setting; whatever else is written for a secret header may be the secret itself, and is not shown."""


def _build(options: HttpOptions, context: SinkContext) -> HttpSink:
    missing = [
        f"the setting {setting} of the header {name} is not set"
        if _SETTING.fullmatch(setting)
        else f"the header {name} has no name of an app setting: write its value into a setting, and the setting's name here"
        for name, setting in options.secret_headers.items()
        if not context.settings.get(setting, "").strip()
    ]
    template = UrlTemplate(options.url)
    headers = {**options.headers}
    headers |= {
        name: context.settings.get(setting, "").strip() for name, setting in options.secret_headers.items()
    }
    missing += [
        f"the value of the header {name} has characters that no header has; accepted: one line of ASCII"
        for name, value in headers.items()
        if not (value.isascii() and value.isprintable())
    ]
    refuse(missing, lambda: check_address(template.plain, "url", trusted_hosts(context.settings)))
    for setting in options.secret_headers.values():
        hide_text(context.settings[setting])
    seconds = parse_duration(options.timeout)
    mapper = RequestMapper(template, options.key)
    return HttpSink(mapper, context.stream, options, headers, Outward(context.settings), seconds)


HTTP = SinkType("http", HttpOptions, _build, SENDING, ())
