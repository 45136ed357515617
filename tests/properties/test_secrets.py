"""A secret that a configuration holds is in nothing that leaves, in whatever form it got there: a log line, an error, a row, an
answer, a traceback.
"""

import asyncio
import base64
import html
import io
import json
import logging
import string
import sys
import threading
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, quote_plus

import msgspec
import pytest
import typer
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rich.table import Table
from typer.testing import CliRunner

from consumer.model import Rejection
from spark_jobs.task_errors import fails_without_secrets
from tidemark.analysis.errors import JobError
from tidemark.analysis.report import Report
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.http.answers import error_response, json_response
from tidemark.foundation.log.process import (
    hide_in_tracebacks,
    hide_secrets,
    keep_secrets_from_logs,
    report_without_secrets,
)
from tidemark.foundation.log.tail import MARK, Line, log_line
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.log.usage import Command, CommandGroup
from tidemark.foundation.sanitize import describe_error, json_without_secrets, shorten, without_secrets
from tidemark.foundation.secrets import known
from tidemark.foundation.secrets.configuration import ConfigPart, Kind, of_address, of_headers, of_settings
from tidemark.foundation.secrets.forms import forms_of
from tidemark.foundation.secrets.known import KnownSecrets
from tidemark.foundation.sql.database import SqlDatabase

ODD = "@:/;=+&%#?!{}'\"\\<> ,.~|^$()[]*-_ü€"
secrets = (
    st.text(st.sampled_from(string.ascii_letters + string.digits + ODD), min_size=8, max_size=40)
    .map(str.strip)
    # Of a value that is mostly marks, the rest is in other texts as well.
    .filter(lambda text: len(text) >= 8 and sum(map(str.isalnum, text)) >= 6 and "***" not in text)
    # What every line and error says is left to its position.
    .filter(lambda text: text not in known._OURS and text.lower() not in {"postgresql", "sqlserver"})
)


@pytest.fixture(autouse=True)
def own_register(monkeypatch):
    """What is hidden in one example is not hidden in the next, and what hides it in this process is taken back."""
    monkeypatch.setattr(known, "_known", KnownSecrets())
    hooks = (sys, "unraisablehook"), (sys, "excepthook"), (threading, "excepthook"), (warnings, "showwarning")
    for module, hook in hooks:
        monkeypatch.setattr(module, hook, getattr(module, hook))
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


def forget():
    known._known = KnownSecrets()


def odbc(text):
    return "{" + text.replace("}", "}}") + "}"


def doubled(text):
    return '"' + text.replace('"', '""') + '"'


CODED = {
    "a URL's user part": lambda it: {
        "CONSUMER_SQL_URL": f"postgresql://app:{quote(it, safe='')}@db.example/x"
    },
    "a URL's user part, uncoded": lambda it: {"CONSUMER_SQL_URL": f"postgresql://app:{it}@db.example/x"},
    "a URL's query": lambda it: {
        "CONSUMER_SQL_URL": f"postgresql://db.example/x?password={quote(it, safe='')}"
    },
    "odbc_connect": lambda it: {
        "CONSUMER_SQL_URL": "mssql+pyodbc:///?odbc_connect="
        + quote_plus(
            f"Driver={{ODBC Driver 18 for SQL Server}};Server=x;Database=d;Uid=app;Pwd={odbc(it)};Encrypt=yes"
        )
    },
    "ODBC": lambda it: {"MY_DATABASE": f"Driver={{ODBC}};Server=x;Uid=app;PWD={odbc(it)};PWDDBMS={odbc(it)}"},
    "ADO.NET": lambda it: {
        "MY_DATABASE": f"Server=x;Database=d;User ID=app;Password={doubled(it)};Encrypt=true"
    },
    "JDBC": lambda it: {
        "MY_JDBC": f"jdbc:sqlserver://h:1433;user=app;keyStoreSecret={odbc(it)};encrypt=true"
    },
    "libpq": lambda it: {
        "MY_PG": "host=h user=app password='" + it.replace("\\", "\\\\").replace("'", "\\'") + "' dbname=x"
    },
    "a key": lambda it: {"TIDEMARK_APP_KEY": it},
    "an environment's secret": lambda it: {"AZURE_CLIENT_SECRET": it},
    "a signature": lambda it: {
        "Blobs": f"BlobEndpoint=https://a/;SharedAccessSignature=sv=1&sig={quote(it, safe='')}"
    },
}
"""Settings that hold a secret, by where it stands."""

FORMS = {
    "raw": lambda it: it,
    "coded": lambda it: quote(it, safe=""),
    "coded, in lower case": lambda it: "".join(
        each if each in string.printable and quote(each, safe="") == each else quote(each, safe="").lower()
        for each in it
    ),
    "coded but for slashes": quote,
    "coded twice": lambda it: quote(quote(it, safe=""), safe=""),
    "a form": quote_plus,
    "JSON": lambda it: json.dumps({"x": it}),
    "JSON in UTF-8": lambda it: msgspec.json.encode({"x": it}).decode(),
    "JSON in JSON": lambda it: json.dumps({"x": json.dumps({"y": it})}),
    "Python": lambda it: repr({"x": it}),
    "bytes": lambda it: repr(it.encode()),
    "Basic": lambda it: "Basic " + base64.b64encode(f"user:{it}".encode()).decode(),
    "base64": lambda it: base64.b64encode(it.encode()).decode(),
    "base64 among others": lambda it: base64.urlsafe_b64encode(f"ab{it}xyz".encode()).decode(),
    "a page": lambda it: it.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
}


def told_in_lines(text):
    line = log_line(
        Line(f"it failed: {text}", "effect", {"target": "t", "effect": {"detail": text, text: 1}})
    )
    record = logging.LogRecord("azure.core", 30, "x", 1, "said %s", (line,), None)
    hide_secrets(record)
    assert json.loads(line[line.rindex(MARK) :])["kind"] == "effect"
    return record.getMessage()


def traced(text):
    try:
        raise ValueError(text)
    except ValueError as error:
        record = logging.LogRecord("mine", 40, "x", 1, "failed", (), (ValueError, error, error.__traceback__))
    hide_secrets(record)
    return logging.Formatter().format(record)


def unwrapped(screen):
    return "".join(line.strip(" │┃┏┓┡┩└┘├┤━─") for line in screen.split("\n"))


def printed(text):
    screen = io.StringIO()
    console = Console(file=screen, width=40)
    console.print(text, markup=False)
    console.print(Table("name", text))
    table = Table("name", "value")
    table.add_row("of it", text)
    console.print(table)
    return unwrapped(screen.getvalue())


def wrapped(text, frame="| ", width=7):
    return "\n".join(f"{frame}{text[at : at + width]}" for at in range(0, len(text), width))


def reported(text):
    report = Report("a report", text)
    report.text(text)
    report.table(["a", text], [[1, text]], caption=text)
    report.code(text)
    report.next_step(text, "tidemark", text)
    page = report.html()
    return html.unescape(page[page.index("<body>") :])


def raised_in_a_task(text):
    @fails_without_secrets
    def task():
        yield 1
        try:
            raise OSError(text)
        except OSError as error:
            raise JobError(text) from error

    try:
        return str(list(task()))
    except JobError as error:
        return "".join(traceback.format_exception(error))


LEAVE = {
    "a text": without_secrets,
    "a terminal": printed,
    "a text in a frame": lambda text: "".join(
        line.removeprefix("| ") for line in without_secrets(wrapped(text.replace(" ", "_"))).split("\n")
    ),
    "JSON for a program": lambda text: json_without_secrets({"x": [text, 1], text: None}).decode(),
    "an answer of the API": lambda text: json.loads(json_response({"x": text}).body)["x"],
    "a page of a report": reported,
    "a task of Spark": raised_in_a_task,
    "the beginning of one": lambda text: shorten(text, 20),
    "a line with fields": told_in_lines,
    "a traceback": traced,
    "an error": lambda text: str(UnavailableError(text)),
    "an error of somebody's": lambda text: describe_error(KeyError(text)),
    "an answer": lambda text: json.loads(error_response(503, text).body)["error"],
    "a dead letter": lambda text: Rejection("transform", text).detail,
}


def hidden_parts(secret):
    """Whatever of the secret may not be there: itself, and every run of six letters and digits of it."""
    runs = "".join(each if each.isascii() and each.isalnum() else " " for each in secret).split()
    return [secret, *(run for run in runs if len(run) >= 8)]


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@given(
    secrets,
    st.sampled_from(sorted(CODED)),
    st.sampled_from(sorted(FORMS)),
    st.sampled_from(["", "x", " ", "%3D", "'"]),
)
@example("Zx9/Qw=8+Rt:7;Kp@1", "odbc_connect", "coded twice", "%3D")
def test_no_form_of_a_secret_leaves(leave, secret, where, form, before):
    settings = CODED[where](secret)
    if leave is LEAVE["a text in a frame"]:  # which takes blanks and its own marks at the ends of lines along
        assume(len(secret) >= known.SHORTEST_WRAPPED and not set(FORMS[form](secret)) & set(" _|"))
    assume(where != "a URL's user part, uncoded" or not set(secret) & set("?# "))
    forget()
    known.hide_settings(settings)

    shown = leave(f"connecting with {before}{FORMS[form](secret)} failed")

    assert FORMS[form](secret).strip("{}\"' ") not in shown
    assert all(part not in shown for part in hidden_parts(secret))
    assert "ecting" in shown


@given(secrets, st.sampled_from(sorted(CODED)))
def test_a_setting_that_is_shown_whole_or_cut_shows_no_secret(secret, where):
    assume(where != "a URL's user part, uncoded" or not set(secret) & set("?# "))
    (value,) = CODED[where](secret).values()
    forget()
    known.hide_settings(CODED[where](secret))

    assert all(part not in shorten(f"is '{value}'", 60) for part in hidden_parts(secret))
    assert all(part not in without_secrets(repr(CODED[where](secret))) for part in hidden_parts(secret))


SETTINGS = {
    "a short name": lambda it: {"SMTP_PASS": it},
    "in quotation marks": lambda it: {"DB_PASSWORD": f'"{it}"'},
    "behind a byte order mark": lambda it: {"HUB": f"\ufeffEndpoint=sb://n/;SharedAccessKey={it}"},
    "behind words": lambda it: {"HUB": f"hub: Endpoint=sb://n/;SharedAccessKeyName=r;SharedAccessKey={it}"},
    "JSON": lambda it: {
        "AZURE_CREDENTIALS": json.dumps({"clientId": "a", "clientSecret": it, "tenantId": "t"})
    },
    "JSON without a name": lambda it: {"LOGIN": json.dumps({"user": "a", "password": it})},
    "headers": lambda it: {"OTEL_EXPORTER_OTLP_HEADERS": f"x-team={it},other=2"},
    "a bearer": lambda it: {"PROM_AUTHORIZATION": f"Bearer {it}"},
    "Basic": lambda it: {"PROM_AUTH": "Basic " + base64.b64encode(f"u:{it}".encode()).decode()},
    "commas": lambda it: {"REDIS": f"h:6380,password={it},ssl=True"},
    "a token for a user": lambda it: {"REDIS_URL": f"rediss://{it}@h:6379"},
    "a list": lambda it: {"TIDEMARK_KEYS": f"first-key-1,{it}"},
    "a signature alone": lambda it: {"BLOB": f"?sv=2024&sig={it}&se=1"},
    "Kafka": lambda it: {"JAAS": f'PlainLoginModule required username="u" password="{it}";'},
    "a block of PEM": lambda it: {"SIGNING_KEY": f"-----BEGIN PRIVATE KEY-----\nMIIEvQ\n{it}\n-----END"},
    "a webhook": lambda it: {"TEAMS_WEBHOOK": f"https://x.example/hooks/{it}"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_secret_in_a_setting_of_any_make_is_known_by_its_value(settings):
    known.hide_settings(settings("Zx9Qw-RtKp_1hun"))

    assert without_secrets("it said Zx9Qw-RtKp_1hun and no more") == "it said *** and no more"


def test_names_stay_although_a_part_of_a_secret_equals_one():
    known.hide_settings({"A_SECRET": "orders@plan-orders/2x", "EVENTHUB_NAME": "orders"})
    known.leave_names({"plan-orders"})

    assert without_secrets("orders of plan-orders") == "orders of plan-orders"
    assert without_secrets("orders@plan-orders/2x") == "***"


@pytest.mark.parametrize(
    "text",
    [
        '{"missing": ["COSMOS_KEY", "EVENTHUB_NAME"]}',
        "expected one of ('api_key', 'user', 'host')",
        '{"name":"CONSUMER_SQL_KEY","value":"id"}',
        "TIDEMARK_API_KEY is missing: no credential gave a token",
    ],
)
def test_lists_of_names_are_no_secrets(text):
    assert without_secrets(text) == text


HALVES = [
    ("postgresql://u:s@Ecrets:retret@h/db", "invalid literal for int() with base 10: 'retret@h'", "retret"),
    ("postgresql://u:sE@cretcret@127.0.0.1/db", "failed to resolve host 'cretcret@127.0.0.1'", "cretcret"),
    ("postgresql://u:sEcret/cretcret@h/db", 'database "cretcret@h/db" does not exist', "cretcret"),
    ("postgresql://u:sEcret?cretcret@h/db", "invalid option cretcret", "cretcret"),
    ("host=h user=u password=sEc33ret retcret", 'missing "=" after "sEc33ret"', "sEc33ret"),
    ("host=h password=sEc retcret dbname=x", 'missing "=" after "retcret"', "retcret"),
    ("Server=h;Pwd=sEc;retcret;Encrypt=yes", "invalid attribute 'retcret'", "retcret"),
]


@pytest.mark.parametrize(("url", "said", "half"), HALVES)
def test_half_a_password_in_the_words_of_a_driver_is_hidden(url, said, half):
    known.hide_settings({"CONSUMER_SQL_URL": url})

    assert half not in without_secrets(said)


@given(secrets)
def test_a_webhooks_address_and_the_headers_of_a_request_are_secrets(secret):
    forget()
    known._known.add(
        of_address(f"https://hooks.example/services/T0/{quote(secret, safe='')}/x?code={quote(secret)}")
    )
    known._known.add(of_headers({"X-Api": f"Bearer {secret}", "Accept": "application/json"}))

    assert secret not in without_secrets(f"POST {secret}: 403 application/json")
    assert "application/json" in without_secrets("403 application/json")


@given(st.lists(st.tuples(st.sampled_from(["PATH", "HOME", "EVENTHUB_NAME", "MODE"]), st.text())))
def test_settings_that_hold_no_secret_hide_nothing(pairs):
    assume(not any("@" in text or ";" in text or "=" in text for _, text in pairs))

    assert of_settings(dict(pairs)) == set()


def test_words_and_numbers_that_lines_are_made_of_stay_although_a_secret_equals_them():
    known.hide_settings(
        {
            "EVENTHUB_NAME": "orders",
            "A_SECRET": "tidemark",
            "B_SECRET": "orders",
            "PIN_SECRET": "123456",
            "DB_URL": "postgresql://postgres:postgres@localhost/postgres",
            "PWD": "/home/site",
            "COSMOS": " accountendpoint = https://x ; AccountKey=c2VjcmV0aw==;Database=Databases;AppName=Endpoint",
        }
    )
    line = log_line(
        Line(
            "orders: 123456 of postgres in /home/site, 0.123456 s",
            "decision",
            {"at": 1712345678.5, "target": "orders"},
        )
    )

    assert line == (
        'orders: *** of postgres in /home/site, 0.123456 s; {"tidemark":1,"kind":"decision","at":1712345678.5,"target":"orders"}'
    )


def test_tokens_make_room_for_newer_ones_and_settings_stay():
    known.hide_settings({"A_SECRET": "kept-1-for-ever"})
    for number in range(known.PASSING + 1):
        known.hide_token(f"token-{number:04}-of-an-hour")

    shown = without_secrets("kept-1-for-ever token-0000-of-an-hour token-0050-of-an-hour")

    assert shown == "*** token-0000-of-an-hour ***"


def test_a_secret_is_hidden_while_others_are_forgotten_or_left(monkeypatch):
    known.hide_settings({"A_SECRET": "kept-1-for-ever", "B_SECRET": "orders@2024x"})
    shown = []

    def forms(secret, *, parts):
        shown.append(without_secrets("kept-1-for-ever"))
        return forms_of(secret, parts=parts)

    monkeypatch.setattr(known, "forms_of", forms)
    known.leave_names({"orders"})
    for number in range(known.PASSING + 2):
        known.hide_token(f"token-{number:04}-of-an-hour")

    assert set(shown) == {"***"}


def test_a_thousand_secrets_are_hidden_as_one_is():
    known.hide_settings({f"N{number}_SECRET": f"s3cret/{number:06}x" for number in range(1_000)})

    assert without_secrets("a s3cret/000007x b s3cret%2F000999x c") == "a *** b *** c"


NAMES = {
    "odbc_connect": "Driver%3DODBC%3BServer%3Dx%3BPwd%3D{}%3BEncrypt%3Dyes",
    "odbc_connect in braces": "Server%3Dx%3BPWD%3D%7Ba{}%3Bb%7D%3BEncrypt%3Dyes",
    "JSON": '{{"client_id": "x", "client_secret": "{}"}}',
    "JSON in JSON": '"{{\\"client_secret\\":\\"{}\\"}}"',
    "Python": "{{'password': '{}', 'user': 'a'}}",
    "headers of h11": "[(b'api-key', b'{}'), (b'accept', b'x')]",
    "headers of aiohttp": "<CIMultiDict('Authorization': 'Basic {}', 'Accept': 'x')>",
    "a header": "api-key: {}",
    "Basic": "Authorization: Basic {}",
    "SharedKey": "authorization: SharedKey account:{}",
    "Proxy": "Proxy-Authorization: Negotiate {}",
    "Cookie": "Set-Cookie: session={}; Path=/",
    "token": "token={}",
    "a form": "grant_type=client_credentials&client_assertion={}&client_secret={}",
    "a signature": "sig%3D{}%26se%3D1",
    "twice": "type%253Dmaster%2526sig%253D{}",
    "Cosmos DB": "authorization: type%3Dmaster%26ver%3D1.0%26sig%3D{}",
    "in JSON of .NET": "https://h/x?sv=1\\u0026sig={}",
    "quoted": 'Server=x;Password="a {}";Encrypt=yes',
    "quoted once": "host=h password='a {}' user=x",
    "braces": "Uid=a;Pwd={{a@b;{}}};Encrypt=yes",
    "an address": "postgresql://a:p@ss/{}@h/db",
    "coded address": "url=postgresql%3A%2F%2Fa%3A{}%40h%2Fdb",
    "event grid": "aeg-sas-key: {}",
    "functions": "x-functions-key: {}",
    "OCP": "Ocp-Apim-Subscription-Key: {}",
    "identity": "X-IDENTITY-HEADER: {}",
    "ODBC's key store": "KeystoreSecret={};ClientKey={}",
    "JDBC's": "trustStorePassword={};keyVaultProviderClientKey={};AADSecurePrincipalSecret={}",
    "App Configuration": "Endpoint=https://x;Id=y;Secret={}",
    "SignalR": "Endpoint=https://x;AccessKey={};Version=1.0",
    "insights": "InstrumentationKey={};IngestionEndpoint=https://x",
    "coded three times": "Server%25253Dx%25253BPwd%25253D{}",
    "an element": "<add><AccessKey>{}</AccessKey></add>",
    "app settings as JSON": '{{"name": "CLIENT_SECRET", "value": "{}"}}',
    "app settings as XML": '<add key="AccountKey" value="{}"/>',
    "a list": '{{"passwords": ["{}"]}}',
    "an object": '{{"password": {{"value": "{}"}}}}',
    "an option": "az login --client-secret {}1 --tenant x",
    "a page's address": "https://h/x?a=1&amp;code={}",
    "a type that guards it": "Settings(client_secret=SecretStr('{}'), x=1)",
    "a type of Rust": 'password: Some("{}")',
    "Go": "password := {}",
    "a device's": '{{"device_code":"{}"}}',
    "a token of Event Grid": "aeg-sas-token: r=x&e=y&s={}",
    "Spark's account key": "('fs.azure.account.key.acc.dfs.core.windows.net', '{}')",
    "Spark's defaults": "spark.hadoop.fs.azure.account.key.acc.blob.core.windows.net {}",
    "Spark's signature": "fs.azure.sas.fixed.token.acc={}",
    "Spark's client": "fs.azure.account.oauth2.client.secret.acc.dfs.core.windows.net={}",
    "a block of PEM": "-----BEGIN RSA PRIVATE KEY-----\nMII\n{}\n-----END RSA PRIVATE KEY-----",
    "Slack": "https://hooks.slack.com/services/T0/B0/{}",
    "Teams": "https://x.webhook.office.com/webhookb2/a@b/IncomingWebhook/{}/c",
}


@pytest.mark.parametrize("text", NAMES.values(), ids=NAMES)
@given(st.text(string.ascii_letters + string.digits, min_size=4, max_size=40))
def test_a_secret_from_outside_is_known_by_the_name_beside_it(text, secret):
    assume(secret not in text and secret not in "and then nothing")
    forget()

    shown = without_secrets(f"and {text.replace('{}', secret).replace('{{', '{').replace('}}', '}')}")

    assert secret not in shown


@given(st.text(string.ascii_letters + string.digits + ODD, min_size=1))
def test_a_database_is_named_by_scheme_host_and_name_and_by_nothing_else(secret):
    forget()
    database = SqlDatabase(f"postgresql://app:{quote(secret, safe='')}@db.example:5432/x?sslmode=require")

    assert repr(database) == "database 'postgresql://db.example:5432/x' (the SQL URL)"


def test_warnings_and_what_finalizers_raise_have_no_secrets(capsys):
    class Odd:
        def __del__(self):
            raise ValueError("said " + str.upper("h1dden-value").lower())

    known.hide_settings({"A_SECRET": "h1dden-value"})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        hide_in_tracebacks()
        warnings.warn("of h1dden-value", stacklevel=1)
        Odd()

    told_of = capsys.readouterr().err
    assert "UserWarning: of ***" in told_of
    assert "ValueError: said ***" in told_of


def test_an_error_that_nobody_expected_ends_a_command_without_secrets(capsys):
    known.hide_settings({"A_SECRET": "h1dden-value"})
    with pytest.raises(SystemExit) as ended, report_without_secrets():
        raise RuntimeError("said h1dden-value") from KeyError("h1dden-value")

    told_of = capsys.readouterr().err
    assert ended.value.code == 1
    assert "RuntimeError: said ***" in told_of
    assert "h1dden-value" not in told_of


def test_what_an_event_loop_reports_of_a_task_that_nobody_awaits_has_no_secrets(caplog):
    async def work():
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "of h1dden-value", "exception": ValueError("h1dden-value")})
        loop.call_soon(lambda: 1 // len({"h1dden-value"} - {"h1dden-value"}))
        await asyncio.sleep(0)

    known.hide_settings({"A_SECRET": "h1dden-value"})
    keep_secrets_from_logs()
    asyncio.run(work())

    assert "of ***" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "h1dden-value" not in caplog.text


KEY = "Zx9QwRtKp1hunAbCdEfGhIjKlMnOpQrStUvWxYz012="
CONNECTION = f"Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=r;SharedAccessKey={KEY}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([CONNECTION], "No such command"),
        (["one", CONNECTION], "unexpected extra argument"),
        (["one", "--at", CONNECTION], "--at"),
    ],
)
def test_a_connection_string_in_the_place_of_an_option_is_not_quoted(monkeypatch, arguments, error):
    """The box around the error is as wide as the terminal, and wraps the key."""

    def one(at: str = "") -> None:
        raise typer.BadParameter(f"--at is {at}")

    several = typer.Typer(cls=CommandGroup)
    several.command()(one)
    several.command("two")(one)
    alone = typer.Typer()
    alone.command(cls=Command)(one)
    monkeypatch.setenv("COLUMNS", "80")

    given = [(several, arguments), *([(alone, arguments[1:])] if arguments[1:] else [])]
    for program, words in given:
        shown = unwrapped(CliRunner().invoke(program, words).output).replace(" ", "")
        assert error.replace(" ", "") in shown
        assert "SharedAccessKey=***" in shown
        assert KEY[:8] not in shown


def test_threads_that_read_their_settings_at_once_lose_no_secret_and_break_nothing():
    """The doctor's checks do. A set that another thread adds to cannot be walked through."""
    secrets = KnownSecrets()
    threads, each = 8, 12
    barrier = threading.Barrier(threads)

    def add(number: int) -> None:
        barrier.wait()
        for index in range(each):
            secrets.leave([f"name{number}x{index}"])
            secrets.add([ConfigPart(f"s3cret-{number:02}-{index:03}", Kind.SECRET)])
            secrets.add([ConfigPart(f"t0ken-{number:02}-{index:03}", Kind.WHOLE)], passing=True)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(add, range(threads)))

    left = [
        secret
        for number in range(threads)
        for index in range(each)
        if secrets.hidden(secret := f"s3cret-{number:02}-{index:03}") != "***"
    ]
    assert left == []
