"""Managed identity as App Service offers it to an app: an endpoint that trades a secret header for tokens."""

import secrets
import time
from dataclasses import dataclass, field

from aiohttp import web

from devstack.servers.faults import FaultRegistry

TOKEN_LIFETIME = 24 * 3600  # seconds, as for tokens of managed identities
ENDPOINT_PATH = "/msi/token"
ARM_AUDIENCES = frozenset({"https://management.azure.com", "https://management.core.windows.net"})


@dataclass(frozen=True, slots=True)
class Token:
    value: str
    resource: str
    client_id: str
    expires_on: int


@dataclass(slots=True)
class TokenIssuer:
    """The tokens given out. They expire by the real clock, for the SDKs compare them with it."""

    _tokens: dict[str, Token] = field(init=False, default_factory=dict)

    def issue(self, resource: str, client_id: str, *, lifetime: int = TOKEN_LIFETIME) -> Token:
        token = Token(secrets.token_urlsafe(32), resource, client_id, int(time.time()) + lifetime)
        self._tokens[token.value] = token
        return token

    def principal(self, authorization: str) -> str:
        """Who calls with this Authorization header.

        Raises PermissionError that says what is wrong with it.
        """
        scheme, _, value = authorization.partition(" ")
        token = self._tokens.get(value)
        if scheme.lower() != "bearer" or not value:
            raise PermissionError("Authentication failed. The 'Authorization' header is missing or invalid.")
        if token is None:
            raise PermissionError("The access token is invalid.")
        if token.expires_on <= time.time():
            raise PermissionError("The access token expired.")
        if token.resource.rstrip("/") not in ARM_AUDIENCES:
            raise PermissionError(
                f"The access token has been obtained for wrong audience or resource '{token.resource}'."
            )
        return token.client_id


@dataclass(slots=True)
class IdentityEndpoint:
    """Serves tokens for the system-assigned identity and for the user-assigned ones listed."""

    issuer: TokenIssuer
    faults: FaultRegistry
    header: str = field(default_factory=lambda: secrets.token_hex(16))
    client_id: str = "00000000-0000-0000-0000-0000000000a1"
    user_assigned: set[str] = field(default_factory=set)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get(ENDPOINT_PATH, self._token)
        return app

    async def _token(self, request: web.Request) -> web.Response:
        fault = self.faults.take("identity.token")
        if fault is not None:
            return _refused(fault.status, fault.condition or "fault")
        if request.headers.get("X-IDENTITY-HEADER") != self.header:
            return _refused(401, "X-IDENTITY-HEADER is missing or wrong.")
        resource = request.query.get("resource")
        if request.query.get("api-version") != "2019-08-01" or not resource:
            return _refused(400, "resource and api-version=2019-08-01 are required.")
        client_id = request.query.get("client_id", self.client_id)
        if client_id not in {self.client_id, *self.user_assigned}:
            return _refused(
                400, "No User Assigned or Delegated Managed Identity found for specified ClientId."
            )
        token = self.issuer.issue(resource, client_id)
        return web.json_response(
            {
                "access_token": token.value,
                "expires_on": str(token.expires_on),
                "resource": token.resource,
                "token_type": "Bearer",
                "client_id": token.client_id,
            }
        )


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message}, status=status)
