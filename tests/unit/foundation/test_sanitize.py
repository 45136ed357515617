"""What may not leave with a text, and what may not enter with one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.foundation.sanitize import (
    describe_error,
    error_text,
    one_line,
    sanitize_line,
    secret_in,
    without_secrets,
)
from tidemark.foundation.secrets import patterns

KEY32 = "kZ0qUj3mJ8m1C5rT2vX9yB4nE7hL6pS0aDfGwQxVtYk="
KEY64 = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
LONG = "9aB" * 28
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl"

SECRETS = {
    "service bus": (f"Endpoint=sb://acme/;SharedAccessKeyName=root;SharedAccessKey={KEY32}", KEY32),
    "short key": ("Endpoint=sb://acme/;SharedAccessKeyName=root;SharedAccessKey=hunter2", "hunter2"),
    "storage": (f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY64};EndpointSuffix=x", KEY64),
    "cosmos": (f"AccountEndpoint=https://a.documents.azure.com:443/;AccountKey={KEY64};", KEY64),
    "sas connection": ("BlobEndpoint=https://a;SharedAccessSignature=sv=2024&sig=aB%2Bc%3D", "aB%2Bc%3D"),
    "sas address": ("https://a.blob.core.windows.net/c/b?sv=2024-01-01&sig=aB%2Bcd%3D&se=2026", "aB%2Bcd%3D"),
    "sas token": ("SharedAccessSignature sr=sb%3a%2f%2fx&sig=aBcdefghij%3d&se=1&skn=root", "aBcdefghij"),
    "account key": (KEY64, KEY64),
    "bus key": (KEY32, KEY32),
    "new key": (LONG, LONG),
    "function key": ("https://app/api/scaling/status?code=abc_DEF-123==", "abc_DEF-123"),
    "database": ("postgresql+psycopg://app:s3cret@db.example/x", "s3cret"),
    "odbc": ("Driver={ODBC};Server=x;Uid=app;Pwd=s3cret;", "s3cret"),
    "bearer": (f"Authorization: Bearer {JWT}", JWT.split(".")[1]),
    "token": (JWT, JWT.split(".")[2]),
    "shortest token": ("eyJabcdefgh.ABCDEFGH", "ABCDEFGH"),
    "upper case": ("ENDPOINT=SB://A;SHAREDACCESSKEY=HUNTER2", "HUNTER2"),
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS)
def test_a_secret_is_hidden_wherever_it_stands_and_the_rest_stays(text, secret):
    shown = without_secrets(f"cannot read ('{text}') of queue 'orders': refused")

    assert secret not in shown
    assert shown.startswith("cannot read (")
    assert shown.endswith("of queue 'orders': refused")
    assert secret_in(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "OrdersServiceBus",
        "AzureWebJobsStorage",
        "%ORDERS_PLAN_ID%",
        "UseDevelopmentStorage=true",
        "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/Production-West/providers/Microsoft.Web/x",
        "250 * instances",
        "SharedAccessKeyName=root",
        "average backlog 812 > 500 over 5 min (5 samples) [plan-orders@20261121T045000.000Z]",
        "ErrorCode=429 status code=503 signature missing",
        "https://acme.blob.core.windows.net:443/container/blob",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        'etag "0x8DBF0A1B2C3D4E5"',
        "0 */5 * * * *",
        "average_of_the_backlog_of_all_orders_of_all_regions_of_the_whole_company",
    ],
)
def test_what_is_no_secret_is_left_as_it_is(text):
    assert (secret_in(text), without_secrets(text)) == (None, text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SECRETS["service bus"][0], "a connection string"),
        (SECRETS["storage"][0], "a connection string"),
        (SECRETS["sas address"][0], "a shared access signature"),
        (SECRETS["database"][0], "an address with a password"),
        (KEY64, "a key or token"),
    ],
)
def test_a_secret_is_told_by_its_kind(text, kind):
    assert secret_in(text) == kind


@given(st.text(), st.sampled_from([text for text, _ in SECRETS.values()]), st.text())
def test_hiding_twice_is_hiding_once(before, secret, after):
    once = without_secrets(f"{before} {secret} {after}")

    assert without_secrets(once) == once


PIECES = [
    *(
        "sig=",
        "AccountKey=",
        "password = ",
        "Bearer ",
        "eyJ",
        "aaaaaaaa",
        ".",
        "=",
        "==",
        "@",
        "://",
        "user:",
        "http",
    ),
    *(
        "A1" * 32,
        "Zz9" * 22,
        "x" * 40,
        "a1B2c3D4e5F6g7H8",
        "&",
        ";",
        " ",
        "***",
        "?code=",
        "SharedAccessSignature ",
    ),
]


@given(st.lists(st.sampled_from(PIECES), max_size=7).map("".join))
def test_what_is_looked_for_first_leaves_no_secret_out(text):
    """As if every pattern were tried on every text."""
    everything = "; = @ eyJ " + "." * patterns.SHORTEST_TOKEN

    assert without_secrets(f"{text}\n{everything}") == f"{without_secrets(text)}\n{everything}"


@given(st.text())
def test_a_line_has_no_character_that_moves_anything(text):
    shown = one_line(text)

    assert all(character.isprintable() or character in "\u200c\u200d" for character in shown)
    assert one_line(shown) == shown
    shown.encode("utf-8")


def test_words_stay_readable_and_what_moves_is_made_visible():
    assert one_line("O'Brien 李 \u0645\u06cc\u200c\u062e") == "O'Brien 李 \u0645\u06cc\u200c\u062e"
    assert one_line("a\r\n  b\x1b[2Jc\u202ed\x07\ud800") == "a b\\x1b[2Jc\\u202ed\\x07\\ud800"


def test_colours_of_an_error_are_left_out_and_hide_no_secret():
    assert one_line("\x1b[31mGeneric error\x1b[0m: \x1b[1;38;5;9mdisk\x1b[m") == "Generic error: disk"
    assert sanitize_line(f"\x1b[1mAccount\x1b[0mKey={KEY64};x") == "AccountKey=***;x"


def test_an_exception_is_told_without_its_secrets_and_on_one_line():
    assert describe_error(ValueError(f"bad\nAccountKey={KEY64};x")) == "ValueError: bad AccountKey=***;x"


def test_the_text_of_a_connection_error_names_no_object_of_this_process():
    for tls in ("<ssl.SSLContext object at 0x7f5e>", "default", "False"):
        error = OSError(f"Cannot connect to host acme.table.core.windows.net:443 ssl:{tls} [Name unknown]")

        assert error_text(error) == "Cannot connect to host acme.table.core.windows.net:443 [Name unknown]"
