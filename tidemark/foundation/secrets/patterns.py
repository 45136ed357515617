"""Finds secrets by how they are written: a name beside the value says so, or the value has the form of a key. Pure.

This is the second filter. The first is `tidemark.foundation.secrets.known`, which knows the values of the configuration. Secrets
from outside, such as a signature in an answer, are found only here.

Names are recognised by their last word, whatever precedes it (`keyVaultProviderClientKey`, `AEKeyStoreClientSecret`,
`PWDDBMS`), because a list of whole names has gaps. Names that are known to be public are excepted.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator

HIDDEN = "***"

_LEFT = (
    r"""(?: (?<![a-z0-9]) | (?<=%[0-9a-f]{2}) | (?<=25[0-9a-f]{2}) | (?<=\\u00[0-9a-f]{2}) | (?<=\\[nrt]) )"""
)
"""Where a word begins, also after a character that is percent-encoded once or twice, or escaped in JSON."""

_NAME = rf"""(?:
    (?: shared\ ?access | account | access | api | function[s]? | master | subscription | host | admin ) \ ? key
    | shared\ access\ signature | connection\ string
    | (?<! partition)(?<! partition[_.-])(?<! row)(?<! row[_.-])(?<! primary[_.-])(?<! foreign[_.-])(?<! public)
      (?<! public[_.-])(?<! sort[_.-])(?<! lane[_.-])(?<! group[_.-])(?<! document[_.-])(?<! message[_.-])
      (?<! sql[_.-])(?<! routing[_.-]) (?<= [a-z0-9_.-]) key
    | (?<= [?&]) key
    | (?: account\.key | client\.secret | sas\.(?:fixed\.)?token ) \.[a-z0-9.-]{{1,100}}
    | secret (?! _?-?(?:uri|name|version|id)\b) [a-z0-9_-]{{0,40}}
    | passwor[dt][a-z0-9_]{{0,40}} | passwd | passphrase | passcode | pwd[a-z]{{0,20}}
    | (?<! continuation)(?<! continuation[_-]) token
    | signature | {_LEFT} sig | assertion | credential_?secret | (?<! __) credentials? (?= = )
    | device_code | connection_?string
    | (?: (?<= [?&]) | (?<= &amp;) | (?<= %3f) | (?<= %26) | (?<= %253f) | (?<= %2526) | (?<= \\u0026) ) code
    | identity[_-]header | copy-source
)"""

_EQUALS = r"""(?: \s*:?=>?\s* | %(?:25){0,3}3d | \\u003d )"""
_COLON = r"""(?: \s*:(?!=)\s* | %(?:25){0,3}3a\s* )"""

# A value in quotation marks ends at the next one that is neither escaped nor doubled; a text may be cut before it.
_QUOTED = r"""
    (?: \\{1,8}" (?: (?! \\{1,8}" ) . )* (?: \\{1,8}" )?
      | b?" (?: [^"\\] | \\. | "" )* "?
      | b?' (?: [^'\\] | \\. | '' )* '?
      | %22 (?: (?! %22 ) \S )* (?: %22 )? )
"""
_BRACED = r"""
    (?: \{ (?: [^}] | \}\} )* \}?
      | %7b (?: (?! %7d ) \S | %7d%7d )* (?: %7d )?
      | %257b (?: (?! %257d ) \S | %257d%257d )* (?: %257d )? )
"""
_BARE = r"""(?: (?! %3b | %26 | %253b | %2526 | \\u0026 ) [^\s;&"'<>\\,)\]}] | \\(?! [nrtu"] ) | [,)\]}](?! \s|$|["'] ) )+"""
"""The characters up to the end of a value in connection strings, queries and SQL addresses, plain or percent-encoded. A comma
or a bracket belongs to the value unless the text continues after it like a list.
"""

_WRAPPED = rf"""(?: [a-z_][a-z0-9_.]{{0,40}} \( {_QUOTED} \)? )"""
"""A value as protecting types print it: SecretStr('...')."""

_ASSIGNED = re.compile(
    rf"(?isx) ( {_NAME} )( ['\"]? {_EQUALS} )( {_QUOTED} | {_WRAPPED} | {_BRACED} | {_BARE} )"
)

# Members of JSON, also in a list or an object of its own: `"name": "value"`, `"name": ["value"`, `"name": {"value": "value"`;
# and `"name": "password", "value": "..."`, as app settings are listed. A number stays.
_MEMBER = re.compile(
    rf"""(?isx) ( {_NAME} | (?<=['"])key | authorization | cookie )
    ( \\* ['"] \s* (?: : | => ) \s* (?: \[ \s* | \{{ \s* \\* ['"]value\\* ['"] \s* : \s* )?
      | \\* ['"] \s* ,? \s* \\* ['"]? value \\* ['"]? \s* [:=] \s* )
    ( {_QUOTED} )"""
)

# ('name', 'value'): headers as HTTP libraries print them. A longer list is one of names.
_TUPLE = re.compile(
    rf"""(?isx) ( [(\[] \s* b?['"] [a-z0-9_.-]* (?: {_NAME} | authorization | cookie ) )( ['"] \s* , \s* )
    (?! ['"] (?-i: [A-Z][A-Z0-9]*_[A-Z0-9_]+ ) ['"] )( {_QUOTED} )(?= \s* [)\]] | $ )"""
)

# <password>value</password>; and `--password value` of a command line, `account.key.x value` of Spark's defaults.
_ELEMENT = re.compile(rf"""(?isx) ( < [a-z:_]* {_NAME} )( > )( [^<\s"\\] [^<"\\\r\n]* )""")
_OPTION = re.compile(
    rf"""(?isx) ( --(?! key\b )[a-z-]* {_NAME} (?! [ ]+ (?: -- | (?-i: [a-z]{{1,5}} ) (?: \s | $ ) ) )
      | account\.key\.[a-z0-9.-]{{1,100}} )( [ ]+ )
    ( "[^"\r\n]*" (?= \s | $ ) | '[^'\r\n]*' | [^\s"']+ )"""
)

# A header, or a line of YAML. What a header authorises with goes to the end of its line.
_HEADER = re.compile(
    rf"""(?isx)
    ( (?: (?:proxy-)?authorization | (?:set-)?cookie | aeg-sas-token ) \s*[:=]\s* | (?:proxy-)?authorization%3a(?:%20)? )
    ( (?: (?! ;\s\{{ ) [^\r\n"'\\] | \\(?![nr"']) )+ )
    | ( {_NAME} {_COLON} )( {_QUOTED} | {_WRAPPED} | {_BRACED} | {_BARE} )
    """
)

# The user part of an address reaches to the last '@' of the word: a password may hold '@', ':' and '/' uncoded.
_IN_ADDRESS = re.compile(r"(?i)(?P<head>\b[a-z][a-z0-9+.-]{0,30}://[^/\s:@\"']{0,500}:)[^\s\"']{1,500}(?=@)")
_IN_CODED_ADDRESS = re.compile(
    r"(?i)(?P<head>%3a%2f%2f(?:(?!%3a|%40|%2f)[^\s%]|%(?!3a|40|2f)){0,100}%3a)[^\s\"'&;]{1,500}(?=%40)"
)
_USER_ONLY = re.compile(r"(?i)(?P<head>\bhttps?://)[^/\s:@\"'?#]{1,500}(?=@)")
_SCHEME = re.compile(
    r"(?i)\b(bearer|sharedaccesssignature|sharedkey|sharedkeylite)( +|%20|\+)(?!\*\*\*)[A-Za-z0-9._~+/=%&:-]{16,}"
)
_BASIC = re.compile(r"(?i)\b(basic)( +|%20)([A-Za-z0-9+/_-]{4,}={0,2})")
_TOKEN = re.compile(r"\beyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,8000}(?:\.[A-Za-z0-9_-]*)?")
# Keys as Azure makes them: 32 or 64 bytes in base64 end with '='; 84 letters and digits in newer services; and Entra ID's
# client secrets, which have a version, 'Q' and '~' after three characters.
_KEY = re.compile(
    r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{40,}={1,2}(?![A-Za-z0-9=])"
    r"|(?:(?<![A-Za-z0-9+/_%-])|(?<=%3[dD]))(?:[A-Za-z0-9+/_-]|%2[bfBF]){40,}(?:%3[dD]){1,2}"
)
_ENTRA = re.compile(r"(?<![\w.~-])[\w.~-]{3}\dQ~[\w.~-]{31,34}(?![\w.~-])")
_BLOCK = re.compile(r"(?s)(?P<head>-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?:(?!-----END|\\*[\"']).)+")
_OTHERS = re.compile(
    r"\bgh[opsur]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bxox[a-z]-[A-Za-z0-9-]{10,}"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]+|(?<=\.webhook\.office\.com/webhookb2/)[\w/@-]+"
    r"|(?<=discord\.com/api/webhooks/)[\w/-]+|(?<=api\.telegram\.org/bot)[\w:-]+"
)
"""Tokens and webhooks of other services that have a form of their own."""
_LONG = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{64,}(?![A-Za-z0-9])"
)

SHORTEST_TOKEN = 20
"""Characters of the shortest text that `_SCHEME`, `_TOKEN`, `_KEY` or `_LONG` can find something in. Derived: "eyJ", 8 and 8 characters, and a dot."""

_WORDS = (
    *("key", "secret", "pass", "pwd", "token", "sig", "assertion", "code", "identity", "copy-source"),
    *("auth", "cookie", "string", "credential", "device"),
)
"""Every name of `_NAME` and of the headers contains one of these. Most texts of a log line contain none."""
_SCHEMES = ("bearer", "shared", "basic")
_FORMS = ("gh", "xox", "hook", "telegram")

_CONNECTION = re.compile(
    r"(?i)\b(account|shared ?access)key\s*=|\b(endpoint|defaultendpointsprotocol)\s*=.*;"
)
_SIGNED = re.compile(r"(?i)\bsig\s*=|\bsharedaccesssignature\b")


def kind_of_secret(text: str) -> str | None:
    """The kind of secret that `text` is or contains, in words; None without a recognised secret."""
    if without_spelt(text) == text:
        return None
    if _CONNECTION.search(text):
        return "a connection string"
    if _SIGNED.search(text):
        return "a shared access signature"
    if _IN_ADDRESS.search(text) or _USER_ONLY.search(text):
        return "an address with a password"
    return "a key or token"


def without_spelt(text: str) -> str:
    """`text` with `***` in place of each recognised secret. Names, hosts and everything else stay readable."""
    # Most texts are short words of a log line, so the parts that each pattern needs are looked for first.
    lower = text.lower()
    if any(map(lower.__contains__, _WORDS)):
        text = _without_named(text)
    if "@" in text and "://" in text:
        text = _USER_ONLY.sub(rf"\g<head>{HIDDEN}", _IN_ADDRESS.sub(rf"\g<head>{HIDDEN}", text))
    if "%" in text:
        text = _IN_CODED_ADDRESS.sub(rf"\g<head>{HIDDEN}", text)
    return text if len(text) < SHORTEST_TOKEN else _without_tokens(text, lower)


def _without_named(text: str) -> str:
    if "PRIVATE KEY-----" in text:
        text = _BLOCK.sub(rf"\g<head>{HIDDEN}", text)
    for pattern in (_ASSIGNED, _MEMBER, _TUPLE):
        text = pattern.sub(_value, text)
    text = _HEADER.sub(_header, text)
    if "<" in text:
        text = _ELEMENT.sub(_value, text)
    if "--" in text or "." in text:
        text = _OPTION.sub(_value, text)
    return text


def _without_tokens(text: str, lower: str) -> str:
    if any(map(lower.__contains__, _SCHEMES)):
        text = _BASIC.sub(_basic, _SCHEME.sub(rf"\1\2{HIDDEN}", text))
    if "eyJ" in text:
        text = _TOKEN.sub(HIDDEN, text)
    if "=" in text or "%3" in text:
        text = _KEY.sub(HIDDEN, text)
    if "Q~" in text:
        text = _ENTRA.sub(HIDDEN, text)
    if any(map(lower.__contains__, _FORMS)):
        text = _OTHERS.sub(HIDDEN, text)
    return _LONG.sub(HIDDEN, text)


def spelt_in(text: str) -> Iterator[str]:
    """The values in `text` that the name beside them says are secret, without their quotation marks."""
    for pattern in (_ASSIGNED, _MEMBER, _HEADER, _OPTION):
        for match in pattern.finditer(text):
            value = match[match.lastindex or 0].strip()
            opening = _OPENING.match(value)
            yield value[len(opening[0]) :].removesuffix(opening[0].lstrip("bB")) if opening else value


_PROSE = re.compile(r"[A-Za-z][a-z]*[A-Z]?[a-z]*[:,.]?$")
"""A word after which a sentence continues: "no credential gave a token: Environment: ..."."""
_OPENING = re.compile(r"""\\+"|b?["']|%22""", re.IGNORECASE)


def _value(match: re.Match[str]) -> str:
    """The name with `***` in the same quotation marks, so that JSON stays JSON."""
    return f"{match[1]}{match[2]}{_hidden(match[3])}"


def _hidden(value: str) -> str:
    opening = _OPENING.match(value)
    if opening is None:
        return HIDDEN
    # A value that was cut off is closed, or it would include the text that is added later, such as the fields of a line.
    return f"{opening[0]}{HIDDEN}{opening[0].lstrip('bB')}"


def _header(match: re.Match[str]) -> str:
    if match[1] is not None:
        return f"{match[1]}{HIDDEN}"
    if (
        match[3].endswith(" ")
        and _PROSE.match(match[4])
        and match.string[match.end() : match.end() + 1] == " "
    ):
        return match[0]
    return f"{match[3]}{_hidden(match[4])}"


def _basic(match: re.Match[str]) -> str:
    """Hide only base64 of `user:password`, because the word also precedes other words."""
    value = match[3].translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        is_pair = b":" in b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        is_pair = False
    return f"{match[1]}{match[2]}{HIDDEN}" if is_pair else match[0]
