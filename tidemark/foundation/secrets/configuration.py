"""Which values of a configuration are secrets. Pure.

A text is taken apart by position, not by trust in its spelling. Of a connection string the value of each key is a secret
that is not known to be public; of an address its user part, its query, and the parts of its path that look drawn at
random; of a setting whose name says so all of it.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from tidemark.foundation.secrets.forms import LONGEST
from tidemark.foundation.secrets.patterns import spelt_in


class Kind(Enum):
    """How a text counts: a secret; a text that is made of secrets and more; what anybody may see."""

    SECRET = auto()
    WHOLE = auto()
    PUBLIC = auto()


class Found(NamedTuple):
    text: str
    kind: Kind


_NAME = re.compile(
    r"(?i)key|secret|token|passw|pwd|(?:^|[_:.-])(?:pass|pw|pin)$|passphrase|passcode|credential|conn(?:ection)?_?str|connection|sas(?:\b|_)|signature"
    r"|webhook|cookie|auth(?!ority|or(?!i[sz]))|identity_header|private|dsn\b"
)
"""Names of settings whose values are secrets, whatever they look like."""

_PUBLIC_NAME = re.compile(
    r"(?i)(?:__|:)(?:account_?name|fullyqualifiednamespace|client_?id|credential|tenant_?id|[a-z]*service_?uri"
    r"|[a-z]*endpoint)$|_(?:schedule|hosting|file|path|dir|name|id|enabled|sock|level)$|type$"
    r"|^consumer_sql_key$|^(?:old)?pwd$|(?:partition|row|sort|primary|public)_?key$"
)
"""And those that only sound like them: an identity's settings, files and names, columns of a key."""

_PUBLIC_KEYS = re.compile(
    r"""(?x)
    endpoint | endpointsuffix | defaultendpointsprotocol | accountname | accountendpoint |
    sharedaccesskeyname | entitypath | blobendpoint | queueendpoint | tableendpoint | fileendpoint |
    blobsecondaryendpoint | queuesecondaryendpoint | tablesecondaryendpoint | ingestionendpoint |
    liveendpoint | applicationid | usedevelopmentstorage | usedevelopmentemulator | transporttype |
    operationtimeout | database | initialcatalog | server | datasource | driver | uid | user | userid |
    username | address | addr | networkaddress | port | host | hostname | hostaddr | dbname |
    databasename | instancename | encrypt | trustservercertificate | hostnameincertificate |
    connecttimeout | connectiontimeout | logintimeout | timeout | sslmode | sslrootcert |
    applicationname | app | integratedsecurity | authentication | persistsecurityinfo |
    multipleactiveresultsets | multisubnetfailover | applicationintent | dsn | disablessl | version
    """
)
"""Keys of connection strings whose values are public, without blanks, underscores and dashes. That of any other is hidden."""

_PUBLIC_PARAMETERS = re.compile(
    r"""(?x)
    sv | ss | srt | sp | se | st | spr | sr | skn | skoid | sktid | skt | ske | sks | skv | api-version
    | driver | sslmode | timeout | charset | connect_timeout | application_name | options | host | port
    | user | database | dbname | encrypt | trustservercertificate | mode | uri | cache | authentication
    """
)
"""Parameters of an address's query that are public: of a shared access signature all but `sig`."""

_PUBLIC_HEADERS = frozenset(
    {"accept", "content-type", "user-agent", "accept-encoding", "content-length", "host", "date"}
)

_ADDRESS = re.compile(r"(?i)(?:jdbc:)?(?P<scheme>[a-z][a-z0-9+.:-]{0,40})://(?P<rest>.*)", re.DOTALL)
_BAD_PORT = re.compile(r"[^/@?]*:(?!\d{0,5}(?:[/?#]|$))")
"""Of an address without its scheme: a colon that no port follows, so that a password must."""

_PAIR = re.compile(
    r"""(?sx) (?:^|;) \s* (?P<key> [a-z_] [\w .-]{0,60}? ) \s*=\s*
    (?P<value> \{(?:[^}]|\}\})*\} | "(?:[^"]|"")*"(?=\s*(?:;|$)) | '(?:[^']|'')*'(?=\s*(?:;|$)) | [^;]* )(?=;|$)""",
    re.IGNORECASE,
)
_WORD_PAIR = re.compile(
    r"""(?sx) (?:^|\s) (?P<key> [a-z_]\w{0,60} ) \s*=\s* (?P<value> '(?:[^'\\]|\\.)*' | [^\s']\S* )""",
    re.IGNORECASE,
)
_DRAWN = re.compile(
    r"(?=.*[0-9A-Z_%-])(?=.*[a-zA-Z]).{20,}|(?=.*\d)(?=.*[A-Z])[^a-z-]{9,}|(?=(?:.*\d){3})(?=.*[a-zA-Z])[^-.]{10,}",
    re.DOTALL,
)
"""A part of a path that is no word of an interface: webhooks have their keys there."""
_WORD = re.compile(r"[A-Za-z]?[a-z]*(?:[-_. ][A-Za-z]?[a-z]*)*|[0-9.:]+")
"""A value that may be anything's name, or a number: it is a secret only where the name beside it says so. Hidden wherever it
stands, the name of a queue would be missing in every line.
"""
_GUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_REFERENCE = "@Microsoft.KeyVault("
"""A reference to a key vault that the platform has not resolved: the name of a secret and none itself."""


def of_settings(settings: Mapping[str, str]) -> set[Found]:
    """Every secret that the settings hold, whatever a setting is called."""
    found = set[Found]()
    for name, value in settings.items():
        text = _bare(value)
        parts = set(_parts(text))
        if _is_secret(name, text) and text not in settings:
            parts |= set(_in_secret(text) if not parts else ())
        elif "webhook" in name.casefold() and _ADDRESS.fullmatch(text):
            parts |= of_address(text)
        elif name.casefold().endswith("headers"):
            pairs = (pair.partition("=") for pair in text.split(","))
            parts |= of_headers({header.strip(): unquote(token.strip()) for header, _, token in pairs})
        found |= _without_public(parts | set(_spelt(text)))
    names = names_of(settings)
    return {each for each in found if each.text.casefold() not in names}


def names_of(settings: Mapping[str, str]) -> set[str]:
    """What the settings call things by, in lower case: words and numbers that no setting's name calls a secret. A secret that
    equals one, or has it as a part, does not take it out of every line.
    """
    texts = {_bare(value) for name, value in settings.items() if not _is_secret(name, _bare(value))}
    return {text.casefold() for text in texts if _WORD.fullmatch(text)}


def of_text(text: str) -> set[Found]:
    """The secrets in a connection string or an address; nothing of other texts."""
    return _without_public(_parts(_bare(text)))


def _bare(value: str) -> str:
    """A setting without the blanks, the byte order mark and the quotation marks around it that files of settings leave."""
    text = value.strip().strip("\ufeff").strip()
    return _unquoted(text).strip() if text[:1] in {"'", '"'} else text


def _in_secret(text: str) -> Iterator[Found]:
    """All of a text that is secret, and each line or member of a list of it: keys are listed, and PEM has many lines."""
    yield Found(text, Kind.SECRET)
    yield from _in_header(text)
    parts = [part.strip() for part in re.split(r"[\r\n,]+", text)]
    yield from (Found(part, Kind.SECRET) for part in parts if part != text and not part.startswith("-----"))


def _in_header(value: str) -> Iterator[Found]:
    """What a header authorises with: the token behind its scheme, and the password in that of Basic."""
    scheme, blank, token = value.partition(" ")
    is_scheme = bool(blank) and _WORD.fullmatch(scheme) is not None
    yield Found(value, Kind.WHOLE if is_scheme else Kind.SECRET)
    if is_scheme:
        yield Found(token.strip(), Kind.SECRET)
    if scheme.casefold() == "basic":
        with suppress(ValueError):
            password = b64decode(token.strip()).decode().partition(":")[2]
            yield Found(password, Kind.SECRET)


def _spelt(text: str) -> Iterator[Found]:
    """What JSON, YAML, headers, options of a command or pairs behind commas call a secret. A word behind a colon may be prose."""
    if text.startswith("?") or (text.count("=") > 1 and "&" in text and "://" not in text):
        yield from _in_query(text.removeprefix("?"))
    is_exact = "=" in text or text[:1] in {"{", "["}
    for value in spelt_in(text) if len(text) <= LONGEST else ():
        for each in {value, value.partition(",")[0], _from_json(value)}:
            if is_exact or not _WORD.fullmatch(each):
                yield from _in_header(each)


def _from_json(value: str) -> str:
    try:
        return str(json.loads(f'"{value}"'))
    except ValueError:
        return value


def of_address(url: str) -> set[Found]:
    """The secrets of an address that opens something to whoever has it, such as a webhook's: all that follows the host is."""
    parts = {*_parts(url), Found(url, Kind.WHOLE if "://" in url else Kind.SECRET)}
    _, slash, path = url.partition("://")[2].partition("/")
    if slash and _DRAWN.search(path):
        parts.add(Found(path, Kind.WHOLE))
    last = path.partition("?")[0].rstrip("/").rpartition("/")[2]
    if not _WORD.fullmatch(last):
        parts.add(Found(last, Kind.SECRET))
    return _without_public(parts)


def of_headers(headers: Mapping[str, str]) -> set[Found]:
    """What headers of a request authorise with, whatever they are called."""
    found = set[Found]()
    for name, value in headers.items():
        if name.casefold() not in _PUBLIC_HEADERS and _is_hidden(name, value):
            found |= set(_in_header(value))
    return found


def _is_secret(name: str, text: str) -> bool:
    """Whether the setting's name says that all of its text is secret. An address has parts that are."""
    return bool(
        _NAME.search(name)
        and not _PUBLIC_NAME.search(name)
        and not text.startswith(_REFERENCE)
        and not _ADDRESS.fullmatch(text)
    )


def _without_public(parts: Iterable[Found]) -> set[Found]:
    """What is secret. A password that is also the user's or the database's name is left to its position: hidden wherever
    that name stands it would be told.
    """
    found = set(parts)
    public = {each.text.casefold() for each in found if each.kind is Kind.PUBLIC}
    return {each for each in found if each.kind is not Kind.PUBLIC and each.text.casefold() not in public}


def _parts(text: str) -> Iterator[Found]:
    if pairs := _pairs(text):
        parts = list(_in_pairs(pairs))
        yield from parts
        if any(each.kind is Kind.SECRET for each in parts):
            yield Found(text, Kind.WHOLE)
    elif address := _ADDRESS.fullmatch(text):
        yield from _in_address(address["scheme"].casefold(), address["rest"])


def _pairs(text: str) -> list[re.Match[str]]:
    """The pairs of a connection string, also those of JDBC behind its address and those of libpq, which blanks divide. What
    may be read in both ways is.
    """
    address = re.match(r"(?i)jdbc:[a-z][a-z0-9+.:-]{0,40}://[^;=?]*(?=;)", text)
    found = list[re.Match[str]]()
    for pattern, least in ((_PAIR, 1), (_WORD_PAIR, 2)):
        pairs = list(pattern.finditer(text, address.end() if address else 0))
        known = sum(_is_known(pair["key"]) for pair in pairs)
        begins = bool(pairs) and (address is not None or pairs[0].start() == 0)
        if begins and known >= least:
            found += pairs
        if known > 1:  # there is no doubt: read the other way, a value would reach over the next keys
            break
    return found


def _plain(key: str) -> str:
    return re.sub(r"[\s_.-]", "", key).casefold()


def _is_known(key: str) -> bool:
    return _PUBLIC_KEYS.fullmatch(_plain(key)) is not None or _NAME.search(key) is not None


def _in_pairs(pairs: Sequence[re.Match[str]]) -> Iterator[Found]:
    for number, pair in enumerate(pairs):
        value = _unquoted(pair["value"].strip())
        if _PUBLIC_KEYS.fullmatch(_plain(pair["key"])):
            yield from _parts(value) if "://" in value else [Found(value, Kind.PUBLIC)]
        elif "sig=" in value:  # a shared access signature
            yield from _in_query(value)
        elif _is_hidden(pair["key"], value):
            yield Found(value, Kind.SECRET)
            yield Found(re.sub(r"\\(.)", r"\1", value), Kind.SECRET)  # as libpq reads it
            yield Found(pair["value"].strip(), Kind.WHOLE)
            following = pairs[number + 1].start() if number + 1 < len(pairs) else 0
            yield from _left_over(pair, following if following >= pair.end() else len(pair.string))


def _left_over(pair: re.Match[str], end: int) -> Iterator[Found]:
    """What is no pair behind a secret that has a blank or semicolon and no quotation marks: the rest of the secret."""
    rest = pair.string[pair.end() : end].strip("; \t\r\n")
    if rest:
        yield Found(pair.string[pair.start("value") : end].strip("; \t\r\n"), Kind.SECRET)
        yield from (Found(part, Kind.SECRET) for part in {rest, *re.split(r"[;\s]+", rest)})


def _is_hidden(name: str, value: str) -> bool:
    return (
        _NAME.search(name) is not None
        or name.strip().casefold() in {"code", "sig"}
        or _WORD.fullmatch(value) is None
    )


def _unquoted(value: str) -> str:
    for opening, closing in ("{}", '""', "''"):
        if len(value) >= 2 and value[0] == opening and value[-1] == closing:
            return value[1:-1].replace(closing * 2, closing)
    return value


def _in_address(scheme: str, rest: str) -> Iterator[Found]:
    """Of the user part and the query everything; of the path what looks drawn.

    A '@', '/', ':', '?' or '#' that stands uncoded in a password ends the user part too early for whoever parses it. So it
    reaches to the last '@' here, over the path for databases, and where no port follows the colon.
    """
    is_web = scheme in {"http", "https"}
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if _BAD_PORT.match(rest) or (not is_web and "@" not in authority):
        reach = rest
        if "@" not in authority and "?" in rest and "=" in rest.partition("?")[2].partition("@")[0]:
            reach = rest.partition("?")[0]  # the '@' is in the value of a parameter
    else:
        reach = rest if not is_web and "@" not in rest.partition("?")[2] else authority
    user, at, place = reach.rpartition("@")
    after = place + rest[len(reach) :] if at else rest
    if at:
        yield from _in_user(user, scheme, is_web=is_web)
    where, question, query = after.partition("?")
    yield from (Found(each, Kind.PUBLIC) for each in re.split(r"[/:#]", where) if not is_web)
    yield from (Found(each, Kind.PUBLIC) for each in re.split(r"[+:]", scheme))
    if question:
        yield Found(query, Kind.WHOLE)
        yield from _in_query(query.partition("#")[0])
    if is_web:
        parts = where.partition("/")[2].split("/")
        yield from (
            Found(each, Kind.SECRET) for each in parts if _DRAWN.fullmatch(each) and not _GUID.fullmatch(each)
        )


def _in_user(user: str, scheme: str, *, is_web: bool) -> Iterator[Found]:
    name, colon, password = user.partition(":")
    if colon:
        yield Found(user, Kind.WHOLE)
        yield Found(password, Kind.SECRET)
        yield Found(name, Kind.PUBLIC)
    elif is_web or scheme.startswith("redis"):  # a token in place of a name
        yield Found(user, Kind.SECRET)


def _in_query(query: str) -> Iterator[Found]:
    """The values of parameters that are not known to be public, as they are and decoded; connection strings in them, too."""
    for pair in query.split("&"):
        name, equals, value = pair.partition("=")
        if not equals or _PUBLIC_PARAMETERS.fullmatch(name.strip().casefold().rpartition(" ")[2]):
            continue
        texts = (value, unquote_plus(value), unquote(value))
        inner = [part for text in texts[1:] for part in _parts(text)]
        if inner:
            yield from (*inner, Found(value, Kind.WHOLE))
        elif _is_hidden(name, texts[1]):
            yield from (Found(text, Kind.SECRET) for text in texts)
