"""An app behind App Service authentication, on this machine: tokens in, the header of the principal out.

It does what the platform is documented to do: takes away headers that only it may set, answers 401 to what is no token of its
own, sends browsers to sign in. Behind it are the product's own checks and API, over an autoscaler in memory.
"""

from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web
from azure.core.credentials import AccessToken

from consumer.web import api as consumer_api
from devstack.servers.certificates import ensure_certificate
from devstack.servers.http import served
from scaling.web import api
from tests.support.principals import SIGN_IN, principal
from tidemark.foundation.checkup import Checkup
from tidemark.foundation.http.answers import error_response, json_response
from tidemark.foundation.http.callers import AuthMode, RefusedError, admit, auth_mode_of

CLIENT_ID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


class FakePlatform:
    """`tokens`: the roles of each token. `key`, if set, opens the app instead, and nobody signs in. `answer`, if set, is
    what is answered instead.
    """

    def __init__(self, autoscaler, folder: Path, consumers=None) -> None:
        self.autoscaler = autoscaler
        self.consumers = consumers
        self.key = ""
        self.certificate = ensure_certificate(folder)
        self.tokens = {}
        self._serving = AsyncExitStack()
        self.requests = []
        self.answer = None
        self.lets_through = False
        self.strips = True
        self.checkup = Checkup(())
        self.mode = auth_mode_of(SIGN_IN)

    async def __aenter__(self):
        app = web.Application(middlewares=[self._authenticate])
        app.add_routes(
            [
                web.get("/api/scaling/status", self._handled(self._status)),
                web.get("/api/scaling/doctor", self._handled(self._doctor)),
                web.get("/api/scaling/log", self._handled(self._log)),
                web.post("/api/scaling/{target}/{order}", self._handled(self._order)),
                web.post("/api/notify/test", self._handled(self._notify_test)),
                web.get("/api/consumer/status", self._handled(self._consumers)),
                web.post("/api/consumer/{name}/rate", self._handled(self._rate)),
            ]
        )
        serving = served(app, context=self.certificate.server_context())
        self.port = await self._serving.enter_async_context(serving)
        self.address = f"https://localhost:{self.port}"
        return self

    async def __aexit__(self, *_):
        await self._serving.aclose()

    @web.middleware
    async def _authenticate(self, request, handler):
        self.requests.append((request.method, request.path_qs, dict(request.headers)))
        if self.answer is not None:
            return self.answer()
        if self.key:
            opened = request.headers.get("x-functions-key") == self.key
            return await handler(request) if opened else web.Response(status=401)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not scheme and self.lets_through:
            return await handler(request)
        if not scheme:
            return web.Response(status=302, headers={"Location": "https://login.microsoftonline.com/"})
        if scheme != "Bearer" or token not in self.tokens:
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    def _handled(self, work):
        async def handle(request):
            headers = {
                name.casefold(): value
                for name, value in request.headers.items()
                if not (self.strips and name.casefold().startswith("x-ms-"))
            }
            token = headers.get("authorization", "").partition(" ")[2]
            if token and not self.key:
                headers["x-ms-client-principal"] = principal("ann@example.org", *self.tokens[token])
            try:
                mode = AuthMode() if self.key else self.mode
                caller = admit(mode, headers, order=request.method == "POST")
                answer = await work(request, caller)
            except RefusedError as error:
                answer = error_response(error.status, str(error))
            return web.Response(body=answer.body, status=answer.status, content_type=answer.media_type)

        return handle

    async def _status(self, request, caller):
        return await api.status(self.autoscaler, caller)

    async def _doctor(self, request, caller):
        return json_response(self.checkup.document())

    async def _log(self, request, caller):
        return await api.log(self.autoscaler, request.query)

    async def _notify_test(self, request, caller):
        return await api.notify_test(self.autoscaler, await request.read())

    async def _consumers(self, request, caller):
        return await consumer_api.status(self.consumers)

    async def _rate(self, request, caller):
        name = request.match_info["name"]
        return await consumer_api.set_rate(self.consumers, name, await request.read(), caller)

    async def _order(self, request, caller):
        order = api.Order(
            request.match_info["target"], request.match_info["order"], await request.read(), caller
        )
        return await api.control(self.autoscaler, order)


class FakeCredential:
    """Hands out one token, and remembers for what."""

    def __init__(self, token="", error=None):
        self.token = token
        self.error = error
        self.scopes = []

    async def get_token(self, *scopes):
        self.scopes += scopes
        if self.error is not None:
            raise self.error
        return AccessToken(self.token, 0)
