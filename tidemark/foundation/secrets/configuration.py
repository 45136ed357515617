"""Finds the secrets in a configuration. Pure.

A text is split by position, and its format is not trusted. In a connection string, the value of every key is a secret unless
the key is known to be public. In an address, the user part, the query and the random-looking parts of the path are secrets. A
setting whose name says so is a secret as a whole.
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
from tidemark.foundation.secrets.patterns import kind_of_secret, spelt_in


class Kind(Enum):
    """How a text is treated: it is a secret, it contains secrets and more, or it is public."""

    SECRET = auto()
    WHOLE = auto()
    PUBLIC = auto()


class ConfigPart(NamedTuple):
    text: str
    kind: Kind


_NAME = re.compile(
    r"(?i)key|secret|token|passw|pwd|(?:^|[_:.-])(?:pass|pw|pin)$|passphrase|passcode|credential|conn(?:ection)?_?str|connection|sas(?:\b|_)|signature"
    r"|webhook|cookie|auth(?!ority|or(?!i[sz]))|identity_header|private|dsn\b"
)
"""Names of settings whose values are secrets, whatever the values look like."""

_PUBLIC_NAME = re.compile(
    r"(?i)(?:__|:)(?:account_?name|fullyqualifiednamespace|client_?id|credential|tenant_?id|[a-z]*service_?uri"
    r"|[a-z]*endpoint)$|_(?:schedule|hosting|file|path|dir|name|id|enabled|sock|level)$|type$"
    r"|^consumer_sql_key$|^(?:old)?pwd$|(?:partition|row|sort|primary|public)_?key$"
)
"""Names that match only by chance: settings of an identity, files and names, and columns of a key."""

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
"""Keys of connection strings with public values, without blanks, underscores and dashes. Values of all other keys are hidden."""

_PUBLIC_PARAMETERS = re.compile(
    r"""(?x)
    sv | ss | srt | sp | se | st | spr | sr | skn | skoid | sktid | skt | ske | sks | skv | api-version
    | driver | sslmode | timeout | charset | connect_timeout | application_name | options | host | port
    | user | database | dbname | encrypt | trustservercertificate | mode | uri | cache | authentication
    """
)
"""Public parameters of a query: those of a shared access signature, except `sig`, and those of databases."""

_PUBLIC_HEADERS = frozenset(
    {"accept", "content-type", "user-agent", "accept-encoding", "content-length", "host", "date"}
)

_ADDRESS = re.compile(r"(?i)(?:jdbc:)?(?P<scheme>[a-z][a-z0-9+.:-]{0,40})://(?P<rest>.*)", re.DOTALL)
_BAD_PORT = re.compile(r"[^/@?]*:(?!\d{0,5}(?:[/?#]|$))")
"""In an address without its scheme: a colon that no port follows, so a password does."""

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
"""A part of a path that looks drawn at random. Webhooks have their keys there."""
_WORD = re.compile(r"[A-Za-z]?[a-z]*(?:[-_. ][A-Za-z]?[a-z]*)*|[0-9.:]+")
"""A value that may be the name of anything, or a number. It is a secret only where the name beside it says so: hidden
everywhere, the name of a queue would be missing in every line.
"""
_GUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_REFERENCE = "@Microsoft.KeyVault("
"""The beginning of a reference to a key vault that the platform has not resolved. It names a secret, and is none."""


def of_settings(settings: Mapping[str, str]) -> set[ConfigPart]:
    """Every secret of the settings, whatever their names are."""
    matches = set[ConfigPart]()
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
        matches |= _without_public(parts | set(_spelt(text)))
    names = names_of(settings)
    return {part for part in matches if part.text.casefold() not in names}


_NO_SECRET = re.compile(
    r"(?!.*(?:(?i:\b[0-9a-f]{32})|(?=\w*\d)(?=\w*[a-z])(?=\w*[A-Z])\w{16}))[\w\s./,:*+%()-]*", re.DOTALL
)
"""Numbers, durations, schedules, names and resource ids: no other signs, as passwords have, and nothing that looks drawn at random."""


def holds_secret(name: str, value: str) -> bool:
    """Whether a setting may have a secret in it, by its name or by how its value is written: any address may be a webhook."""
    is_spelt = "://" in value or kind_of_secret(value) is not None
    return is_spelt or bool(of_settings({name: value})) or not _NO_SECRET.fullmatch(value)


def names_of(settings: Mapping[str, str]) -> set[str]:
    """The names among the values, in lower case: words and numbers of settings that are no secrets. They stay in every line,
    also where a secret or a part of one equals them.
    """
    texts = {_bare(value) for name, value in settings.items() if not _is_secret(name, _bare(value))}
    return {text.casefold() for text in texts if _WORD.fullmatch(text)}


def of_text(text: str) -> set[ConfigPart]:
    """The secrets in a connection string or an address; none in other texts."""
    return _without_public(_parts(_bare(text)))


def _bare(value: str) -> str:
    """The value without the blanks, byte order mark and quotation marks that files of settings leave around it."""
    text = value.strip().strip("\ufeff").strip()
    return _unquoted(text).strip() if text[:1] in {"'", '"'} else text


def _in_secret(text: str) -> Iterator[ConfigPart]:
    """The whole text, and each line or member of a list in it: keys come in lists, and PEM has many lines."""
    yield ConfigPart(text, Kind.SECRET)
    yield from _in_header(text)
    parts = [part.strip() for part in re.split(r"[\r\n,]+", text)]
    yield from (
        ConfigPart(part, Kind.SECRET) for part in parts if part != text and not part.startswith("-----")
    )


def _in_header(value: str) -> Iterator[ConfigPart]:
    """The credentials of a header: the token after its scheme, and the password in a Basic header."""
    scheme, blank, token = value.partition(" ")
    is_scheme = bool(blank) and _WORD.fullmatch(scheme) is not None
    yield ConfigPart(value, Kind.WHOLE if is_scheme else Kind.SECRET)
    if is_scheme:
        yield ConfigPart(token.strip(), Kind.SECRET)
    if scheme.casefold() == "basic":
        with suppress(ValueError):
            password = b64decode(token.strip()).decode().partition(":")[2]
            yield ConfigPart(password, Kind.SECRET)


def _spelt(text: str) -> Iterator[ConfigPart]:
    """Values that JSON, YAML, headers, command options or pairs name as secrets. A word after a colon may be prose."""
    if text.startswith("?") or (text.count("=") > 1 and "&" in text and "://" not in text):
        yield from _in_query(text.removeprefix("?"))
    is_exact = "=" in text or text[:1] in {"{", "["}
    for value in spelt_in(text) if len(text) <= LONGEST else ():
        for spelling in {value, value.partition(",")[0], _from_json(value)}:
            if is_exact or not _WORD.fullmatch(spelling):
                yield from _in_header(spelling)


def _from_json(value: str) -> str:
    try:
        return str(json.loads(f'"{value}"'))
    except ValueError:
        return value


def of_address(url: str) -> set[ConfigPart]:
    """The secrets of an address that gives access to everybody who has it, such as a webhook: all that follows the host."""
    parts = {*_parts(url), ConfigPart(url, Kind.WHOLE if "://" in url else Kind.SECRET)}
    _, slash, path = url.partition("://")[2].partition("/")
    if slash and _DRAWN.search(path):
        parts.add(ConfigPart(path, Kind.WHOLE))
    last = path.partition("?")[0].rstrip("/").rpartition("/")[2]
    if not _WORD.fullmatch(last):
        parts.add(ConfigPart(last, Kind.SECRET))
    return _without_public(parts)


def of_headers(headers: Mapping[str, str]) -> set[ConfigPart]:
    """The credentials in the headers of a request, whatever the headers' names are."""
    matches = set[ConfigPart]()
    for name, value in headers.items():
        if name.casefold() not in _PUBLIC_HEADERS and _is_hidden(name, value):
            matches |= set(_in_header(value))
    return matches


def _is_secret(name: str, text: str) -> bool:
    """Whether the setting's name says that its whole value is secret. Of an address, only parts are."""
    return bool(
        _NAME.search(name)
        and not _PUBLIC_NAME.search(name)
        and not text.startswith(_REFERENCE)
        and not _ADDRESS.fullmatch(text)
    )


def _without_public(parts: Iterable[ConfigPart]) -> set[ConfigPart]:
    """The secrets among the parts. A password that equals the name of the user or the database is hidden only by its position:
    hidden wherever that name is, it would be revealed.
    """
    matches = set(parts)
    public = {part.text.casefold() for part in matches if part.kind is Kind.PUBLIC}
    return {part for part in matches if part.kind is not Kind.PUBLIC and part.text.casefold() not in public}


def _parts(text: str) -> Iterator[ConfigPart]:
    if pairs := _pairs(text):
        parts = list(_in_pairs(pairs))
        yield from parts
        if any(part.kind is Kind.SECRET for part in parts):
            yield ConfigPart(text, Kind.WHOLE)
    elif address := _ADDRESS.fullmatch(text):
        yield from _in_address(address["scheme"].casefold(), address["rest"])


def _pairs(text: str) -> list[re.Match[str]]:
    """The pairs of a connection string; also those of JDBC after its address, and those of libpq, which are separated by blanks.
    A text that may be read in both ways is read in both.
    """
    address = re.match(r"(?i)jdbc:[a-z][a-z0-9+.:-]{0,40}://[^;=?]*(?=;)", text)
    matches = list[re.Match[str]]()
    for pattern, least in ((_PAIR, 1), (_WORD_PAIR, 2)):
        pairs = list(pattern.finditer(text, address.end() if address else 0))
        known = sum(_is_known(pair["key"]) for pair in pairs)
        begins = bool(pairs) and (address is not None or pairs[0].start() == 0)
        if begins and known >= least:
            matches += pairs
        if known > 1:  # this is certain; read the other way, a value would include the next keys
            break
    return matches


def _plain(key: str) -> str:
    return re.sub(r"[\s_.-]", "", key).casefold()


def _is_known(key: str) -> bool:
    return _PUBLIC_KEYS.fullmatch(_plain(key)) is not None or _NAME.search(key) is not None


def _in_pairs(pairs: Sequence[re.Match[str]]) -> Iterator[ConfigPart]:
    for number, pair in enumerate(pairs):
        value = _unquoted(pair["value"].strip())
        if _PUBLIC_KEYS.fullmatch(_plain(pair["key"])):
            yield from _parts(value) if "://" in value else [ConfigPart(value, Kind.PUBLIC)]
        elif "sig=" in value:  # a shared access signature
            yield from _in_query(value)
        elif _is_hidden(pair["key"], value):
            yield ConfigPart(value, Kind.SECRET)
            yield ConfigPart(re.sub(r"\\(.)", r"\1", value), Kind.SECRET)  # as libpq reads it
            yield ConfigPart(pair["value"].strip(), Kind.WHOLE)
            following = pairs[number + 1].start() if number + 1 < len(pairs) else 0
            yield from _left_over(pair, following if following >= pair.end() else len(pair.string))


def _left_over(pair: re.Match[str], end: int) -> Iterator[ConfigPart]:
    """The text after a secret that is no pair: the rest of a secret that contains a blank or semicolon without quotation marks."""
    rest = pair.string[pair.end() : end].strip("; \t\r\n")
    if rest:
        yield ConfigPart(pair.string[pair.start("value") : end].strip("; \t\r\n"), Kind.SECRET)
        yield from (ConfigPart(part, Kind.SECRET) for part in {rest, *re.split(r"[;\s]+", rest)})


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


def _in_address(scheme: str, rest: str) -> Iterator[ConfigPart]:
    """The user part, the query, and the parts of the path that look drawn at random.

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
    yield from (ConfigPart(word, Kind.PUBLIC) for word in re.split(r"[/:#]", where) if not is_web)
    yield from (ConfigPart(word, Kind.PUBLIC) for word in re.split(r"[+:]", scheme))
    if question:
        yield ConfigPart(query, Kind.WHOLE)
        yield from _in_query(query.partition("#")[0])
    if is_web:
        parts = where.partition("/")[2].split("/")
        yield from (
            ConfigPart(part, Kind.SECRET)
            for part in parts
            if _DRAWN.fullmatch(part) and not _GUID.fullmatch(part)
        )


def _in_user(user: str, scheme: str, *, is_web: bool) -> Iterator[ConfigPart]:
    name, colon, password = user.partition(":")
    if colon:
        yield ConfigPart(user, Kind.WHOLE)
        yield ConfigPart(password, Kind.SECRET)
        yield ConfigPart(name, Kind.PUBLIC)
    elif is_web or scheme.startswith("redis"):  # a token in place of a name
        yield ConfigPart(user, Kind.SECRET)


def _in_query(query: str) -> Iterator[ConfigPart]:
    """The values of parameters that are not known to be public, as they are and decoded, and connection strings in them."""
    for pair in query.split("&"):
        name, equals, value = pair.partition("=")
        if not equals or _PUBLIC_PARAMETERS.fullmatch(name.strip().casefold().rpartition(" ")[2]):
            continue
        texts = (value, unquote_plus(value), unquote(value))
        inner = [part for text in texts[1:] for part in _parts(text)]
        if inner:
            yield from (*inner, ConfigPart(value, Kind.WHOLE))
        elif _is_hidden(name, texts[1]):
            yield from (ConfigPart(text, Kind.SECRET) for text in texts)
