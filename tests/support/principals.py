"""Callers as App Service authentication tells them: the header X-MS-CLIENT-PRINCIPAL, and the settings around it."""

import base64
import json

OBJECT_ID = "11111111-2222-3333-4444-555555555555"

PLATFORM = {"WEBSITE_AUTH_ENABLED": "True", "WEBSITE_SITE_NAME": "func-tidemark"}
"""What the platform sets in the app's environment while it signs people in."""

SIGN_IN = {**PLATFORM, "TIDEMARK_SIGN_IN": "true"}


def principal(name="anna@example.org", *roles, **changes):
    """The header's value. `changes`: `claims` to add, or members of the whole."""
    claims = [("preferred_username", name), ("oid", OBJECT_ID), *(("roles", role) for role in roles)]
    return encoded([*claims, *changes.pop("claims", [])], **changes)


def encoded(claims, **changes):
    """The header's value, of pairs of a type and a value."""
    told = {
        "auth_typ": "aad",
        "claims": [{"typ": typ, "val": val} for typ, val in claims],
        "name_typ": "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/emailaddress",
        "role_typ": "http://schemas.microsoft.com/ws/2008/06/identity/claims/role",
    }
    return base64.b64encode(json.dumps({**told, **changes}).encode()).decode()


def signed_in(name="anna@example.org", *roles):
    """The headers of a request as the platform passes it on."""
    return {"x-ms-client-principal": principal(name, *roles)}


def order_headers(name="anna@example.org", *roles, **changes):
    """Those of an order from the app's own page. `changes` replace headers (`_` for `-`); None takes one away."""
    headers = {
        **signed_in(name, *roles),
        "content-type": "application/json",
        "host": "func-tidemark.azurewebsites.net",
        "origin": "https://func-tidemark.azurewebsites.net",
        "sec-fetch-site": "same-origin",
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    return {key: value for key, value in headers.items() if value is not None}
