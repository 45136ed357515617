"""The base of collectors that ask an address of the configuration, with headers whose values are app settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from scaling.collectors.azure_entity import DEADLINE, Name
from scaling.collectors.number.asking import NumberCollector
from tidemark.foundation.http.outward import AddressError, check_address, trusted_hosts
from tidemark.foundation.secrets.known import hide_headers, hide_text


class EndpointParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of an address. `headers` are names of app settings by the names of the headers."""

    url: Name
    headers: dict[str, str] = {}
    empty: float | None = None

    def problems(self) -> dict[str, str]:
        trusted = frozenset({_host_of(self.url)})  # as a read may find it to be, by the settings
        return _header_problems(self.headers) | address_problems("url", self.url, trusted)

    def refused(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Why no read would call the address, by the app settings, by the option."""
        return address_problems("url", self.url, trusted_hosts(settings))


class EndpointCollector(NumberCollector):
    """Asks the `url` of its parameters."""

    def __init__(
        self, what: str, params: EndpointParams, settings: Mapping[str, str], *, deadline: float = DEADLINE
    ) -> None:
        """`what` is read of the host, in words."""
        hide_text(params.url)
        host = urlsplit(params.url).hostname or ""
        super().__init__(
            f"'{what}' of {host}", settings, endpoint=host, empty=params.empty, deadline=deadline
        )

    @staticmethod
    def measured(params: EndpointParams, settings: Mapping[str, str]) -> dict[str, object]:
        return {"headers": _chosen_by(params.headers, settings)}


_CREDENTIAL = re.compile(r"(?i)auth|key|token|secret|cookie|sign|password")


def _chosen_by(names: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """What headers may choose of what is read, such as a tenant, with the values of app settings: all but those named like a credential,
    which is renewed now and then.
    """
    return {
        header.casefold(): settings.get(setting, "")
        for header, setting in names.items()
        if not _CREDENTIAL.search(header)
    }


def headers_of(names: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Headers with the values of app settings. Raises ValueError naming the header whose setting is missing. It shows neither
    the value nor the text in place of a setting's name, which may be the value.
    """
    headers: dict[str, str] = {}
    for header, setting in names.items():
        value = settings.get(setting, "").strip()
        if not value:
            raise ValueError(f"the app setting that is named for the header {header} is not set")
        if not value.isprintable() or not value.isascii():
            raise ValueError(
                f"the app setting that is named for the header {header} holds what no header can"
            )
        headers[header] = value
    hide_headers(headers)
    return headers


def address_problems(option: str, url: str, trusted: frozenset[str], named: str = "it") -> dict[str, str]:
    """What is wrong with an address, if anything, by the option that says it. Each read checks whether it may be called, because that
    depends on settings and name servers: it fails the metric, not the app.
    """
    try:
        check_address(url, named, trusted)
    except AddressError as error:
        return {option: str(error).removeprefix("it: ")}
    return {}


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _header_problems(names: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with the option `headers`, if anything."""
    for header, setting in names.items():
        if not _HEADER.fullmatch(header):
            return {"headers": f"found the header '{header}'; accepted are names of letters, digits and -"}
        if header.casefold() in _OWN_HEADERS:
            return {"headers": f"found the header '{header}', which is made here"}
        if not SETTING_NAME.fullmatch(setting):
            return {
                "headers": f"what is given for {header} is no name of an app setting; its value belongs there"
            }
    return {}


_HEADER = re.compile(r"[A-Za-z0-9-]{1,80}")
SETTING_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,127}")

_OWN_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-type"}
)
