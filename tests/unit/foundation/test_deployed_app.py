"""Which apps are reached, and by what: nothing that opens an app goes to another place, or into a message."""

import pytest

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.http.deployed_app import Access, read_access

ID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
SIGN_IN = {"TIDEMARK_SIGN_IN_CLIENT_ID": ID}
KEY = {"TIDEMARK_APP_KEY": "secret=="}
APP = "https://func-tidemark.azurewebsites.net"


@pytest.mark.parametrize(
    ("address", "settings", "access"),
    [
        (APP, SIGN_IN, Access(APP, client_id=ID)),
        (f" {APP}/ ", SIGN_IN, Access(APP, client_id=ID)),
        (f"{APP}/api/", KEY, Access(APP, key="secret==")),
        (f"{APP}:8443", KEY, Access(f"{APP}:8443", key="secret==")),
        (APP, {**SIGN_IN, **KEY}, Access(APP, client_id=ID)),
        ("https://localhost:8443", SIGN_IN, Access("https://localhost:8443", client_id=ID)),
        # A token travels over TLS only.
        ("http://localhost:7071", SIGN_IN, Access("http://localhost:7071")),
        ("http://[::1]:7071", {**SIGN_IN, **KEY}, Access("http://[::1]:7071", key="secret==")),
        ("http://127.0.0.1", {}, Access("http://127.0.0.1")),
    ],
)
def test_an_address_and_what_opens_it(address, settings, access):
    assert read_access(address, settings) == access


@pytest.mark.parametrize(
    ("address", "settings", "told"),
    [
        ("func-tidemark.azurewebsites.net", SIGN_IN, "accepted is https://"),
        ("http://func-tidemark.azurewebsites.net", SIGN_IN, "accepted is https://"),
        ("http://localhost.evil.example", KEY, "accepted is https://"),
        ("ftp://localhost", KEY, "accepted is https://"),
        ("https://", KEY, "accepted is https://"),
        ("https://[", KEY, "is no address"),
        ("https://a:70000", KEY, "is no address"),
        (f"{APP}/api/dashboard?code=c2VjcmV0", KEY, "accepted is https://"),
        (f"{APP}?code=c2VjcmV0", KEY, "accepted is https://"),
        (f"{APP}#c2VjcmV0", KEY, "accepted is https://"),
        (f"{APP}/api/dashboard", KEY, "found the path '/api/dashboard'"),
        ("https://me:c2VjcmV0@func-tidemark.azurewebsites.net", KEY, "accepted is https://"),
        (APP, {}, "set TIDEMARK_SIGN_IN_CLIENT_ID"),
        (APP, {"TIDEMARK_APP_KEY": "  "}, "set TIDEMARK_SIGN_IN_CLIENT_ID"),
        (APP, {"TIDEMARK_SIGN_IN_CLIENT_ID": "https://management.azure.com"}, "is not a client id"),
        (APP, {"TIDEMARK_APP_KEY": "c2VjcmV0\r\nx: y"}, "is not a key"),
    ],
)
def test_what_is_no_app_or_opens_none_is_refused_without_showing_secrets(address, settings, told):
    with pytest.raises(SettingsError) as caught:
        read_access(address, settings)

    assert told in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


def test_what_opens_an_app_is_not_shown():
    assert "secret" not in repr(Access(APP, key="secret=="))
