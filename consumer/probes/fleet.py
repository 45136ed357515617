"""The parent of worker processes answers for all of them, because a probe has one address.

Each worker listens on this machine only, at the parent's port plus one plus its index.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from consumer.probes.prometheus import CONTENT_TYPE, merged
from consumer.probes.server import JSON, Answer, json_text, verdict

LOCAL = "127.0.0.1"
WITHIN = 2.0
"""Seconds for the answer of a worker; probes should wait longer."""
START_WITHIN = 60.0
"""Seconds in which a started process must listen: some twenty times what a start takes."""


def worker_port(port: int, index: int) -> int:
    """Where worker `index` (from 0) listens."""
    return port + 1 + index


class FleetAnswers:
    """`ports` are those of the workers. `ages` gives for each of them the seconds since it was started; None for one that does
    not run (it is replaced).
    """

    def __init__(self, ports: Sequence[int], ages: Callable[[], Sequence[float | None]]) -> None:
        self._ports = ports
        self._ages = ages

    def __call__(self, path: str) -> Answer:
        ages = self._ages()
        running = [index for index, age in enumerate(ages) if age is not None]
        with ThreadPoolExecutor(max(1, len(running))) as threads:
            answers_by_index = dict(
                zip(running, threads.map(lambda index: self._ask(index, path), running), strict=True)
            )
        answers = [answers_by_index.get(index) for index in range(len(ages))]
        if path == "/metrics":
            texts = [answer.body for answer in answers if answer is not None and answer.status == 200]
            return Answer(200, merged(texts), CONTENT_TYPE)
        if path == "/state":
            return Answer(200, json_text({"workers": [_state(answer) for answer in answers]}), JSON)
        problems = [
            f"worker {index + 1} of {len(ages)}: {problem}"
            for index, answer in enumerate(answers)
            if (problem := _problem(path, ages[index], answer))
        ]
        return verdict("; ".join(problems))

    def _ask(self, index: int, path: str) -> Answer | None:
        """The answer of a worker; None without one."""
        connection = http.client.HTTPConnection(LOCAL, self._ports[index], timeout=WITHIN)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, response.read().decode())
        except (OSError, http.client.HTTPException, UnicodeDecodeError):
            return None
        finally:
            connection.close()


def _problem(path: str, age: float | None, answer: Answer | None) -> str:
    """Why a probe of this worker is not good. A worker that was killed is replaced by its parent: a restart of all is no cure."""
    if age is None:
        return "" if path == "/live" else "it is being replaced"
    if answer is None:
        if path == "/live" and age < START_WITHIN:
            return ""
        return "it is starting" if age < START_WITHIN else f"it does not answer within {WITHIN:g} s"
    return "" if answer.status == 200 else answer.body.strip()


def _state(answer: Answer | None) -> object:
    if answer is None or answer.status != 200:
        return None
    try:
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return None
