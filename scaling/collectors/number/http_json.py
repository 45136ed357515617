"""One number of any endpoint that answers with JSON, found by a JMESPath expression."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import jmespath  # type: ignore[import-untyped]

from scaling.collectors.azure_entity import DEADLINE, Name
from scaling.collectors.number.asking import Asking, Number, digest, is_number_text, number
from scaling.collectors.number.endpoint import EndpointCollector, EndpointParams, headers_of
from tidemark.foundation.sanitize import sanitize_line


class _Strict(jmespath.functions.Functions):  # type: ignore[misc]
    """With a `to_number` that fails for what is no number. The library's own makes a null of it, which `empty` would take
    for no value, and which sums and maxima leave out.
    """

    @jmespath.functions.signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_to_number(self, value: Any) -> Any:
        number = super()._func_to_number(value)
        if value is not None and (number is None or (isinstance(value, str) and not is_number_text(value))):
            raise ValueError(
                f"to_number() was given {sanitize_line(json.dumps(value))[:60]}, which is no number"
            )
        return number


_STRICT = jmespath.Options(custom_functions=_Strict())

OPTION = "the option 'url' of an http_json metric"


class HttpJsonCollector(EndpointCollector):
    """What a GET answers, one request a read. Redirects are not followed, and answers of more than 4 MB refused."""

    ROLE = "the right header, which an app setting holds"

    class Params(EndpointParams, frozen=True, kw_only=True):
        """`headers`: the name of each, and the name of the app setting that holds its value. `empty` is what a null counts
        as; without it, that is no value.
        """

        path: Name

        def problems(self) -> dict[str, str]:
            problems = EndpointParams.problems(self)
            try:
                jmespath.compile(self.path)
            except jmespath.exceptions.JMESPathError as error:
                details = " ".join(str(error).split())
                problems["path"] = f"found '{self.path}', which is no JMESPath expression: {details}"
            return problems

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        super().__init__(params.path, params, settings, deadline=deadline)
        self._params = params

    @staticmethod
    def entity(params: Params) -> str:
        return f"http_json:{urlsplit(params.url).hostname} {params.path} {digest(params)}"

    async def _number(self, client: Asking, now: float, /) -> Number:
        params = self._params
        headers = {"Accept": "application/json", **headers_of(params.headers, self._settings)}
        document = await client.document("GET", params.url, setting=OPTION, headers=headers)
        try:
            value = jmespath.search(params.path, document, options=_STRICT)
        except jmespath.exceptions.JMESPathError as error:
            raise ValueError(f"cannot be found in the answer: {' '.join(str(error).split())}") from None
        return number(value, "it")
