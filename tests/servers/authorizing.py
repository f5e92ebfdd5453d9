"""An authorization server, and an MCP server that asks for its tokens, each on a real socket of this machine. The
flags of the first say how it misbehaves."""

import asyncio
import contextlib
import secrets
import threading
import time

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizeError,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

CLIENT, SECRET = "trainer", "s3cret-of-the-trainer-4711"


class Server:
    "An application on a socket of its own; it can be stopped, and started again at the same port."

    def __init__(self, port: int = 0):
        self.port = port

    def app(self) -> Starlette:
        raise NotImplementedError

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        if not self.port:
            with contextlib.closing(__import__("socket").create_server(("127.0.0.1", 0))) as free:
                self.port = free.getsockname()[1]
        config = uvicorn.Config(
            self.app(), host="127.0.0.1", port=self.port, log_config=None, timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()), daemon=True)
        self.thread.start()
        until = time.monotonic() + 20
        while not self.server.started and time.monotonic() < until:
            time.sleep(0.01)
        return self

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)


class Authority(Server):
    "Issues tokens, for a login and for client credentials."

    def __init__(self):
        super().__init__()
        self.clients = {
            CLIENT: OAuthClientInformationFull(
                client_id=CLIENT,
                client_secret=SECRET,
                token_endpoint_auth_method="client_secret_basic",
                grant_types=["client_credentials", "authorization_code", "refresh_token"],
                redirect_uris=["http://127.0.0.1:1/callback"],
            )
        }
        self.codes, self.access, self.refresh = {}, {}, {}
        self.grants = []  # the grants of all requests for a token, in order
        self.life, self.refreshes, self.audience, self.scopes = 3600, True, "", None
        self.broken, self.denies, self.delay, self.told = 0, False, 0.0, []

    def app(self) -> Starlette:
        options = ClientRegistrationOptions(enabled=True, valid_scopes=["read", "write"], default_scopes=["read"])
        issuer = AuthSettings(issuer_url=self.base, resource_server_url=None).issuer_url  # without a slash at its end
        routes = create_auth_routes(self, issuer, client_registration_options=options)
        issue = next(route for route in routes if route.path == "/token").app
        return Starlette(routes=[Route("/token", self.token(issue), methods=["POST"]), *routes])

    def token(self, issue):
        "The endpoint for tokens: that of the SDK, and client credentials, which it does not know."

        class Endpoint:
            def __init__(self, authority):
                self.authority = authority

            async def __call__(self, scope, receive, send):
                from starlette.requests import Request

                body = await Request(scope, receive).body()

                async def again():
                    return {"type": "http.request", "body": body, "more_body": False}

                request, authority = Request(scope, again), self.authority
                form = dict(await request.form())
                authority.grants.append(form["grant_type"])
                authority.told += [form[name] for name in ("code", "code_verifier", "refresh_token") if name in form]
                await asyncio.sleep(authority.delay)
                if authority.broken:
                    answer = JSONResponse({"error": "down"}, authority.broken)
                elif form["grant_type"] == "client_credentials":
                    answer = authority.for_client(request, form)
                else:
                    return await issue(scope, again, send)
                await answer(scope, receive, send)

        return Endpoint(self)

    def for_client(self, request, form) -> JSONResponse:
        import base64

        given = base64.b64decode(request.headers.get("authorization", "").partition(" ")[2]).decode().partition(":")
        known = self.clients.get(form.get("client_id") or given[0])
        if not known or known.client_secret != (form.get("client_secret") or given[2]):
            return JSONResponse({"error": "invalid_client", "error_description": "unknown client"}, 401)
        granted = self.issue(known.client_id, form.get("scope", "read").split(), form.get("resource"))
        return JSONResponse(granted.model_dump(exclude={"refresh_token"}))

    def issue(self, client: str, scopes: list[str], resource: str | None) -> OAuthToken:
        scopes = scopes if self.scopes is None else self.scopes
        token, renewal = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        told = dict(client_id=client, scopes=scopes, resource=self.audience or resource)
        self.access[token] = AccessToken(token=token, expires_at=int(time.time() + self.life) + 1, **told)
        if self.refreshes:
            self.refresh[renewal] = RefreshToken(token=renewal, **told)
        return OAuthToken(
            access_token=token,
            expires_in=self.life,
            scope=" ".join(scopes),
            refresh_token=renewal if self.refreshes else None,
        )

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        if self.denies:
            raise AuthorizeError("access_denied", "the user said no")
        code = f"code-{secrets.token_hex(20)}"
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or ["read"],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        self.codes.pop(authorization_code.code)
        return self.issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        self.refresh.pop(refresh_token.token)  # each is good for one renewal
        return self.issue(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token):
        return self.access.get(token)

    async def revoke_token(self, token):
        self.access.clear()
        self.refresh.clear()

    @property
    def secrets(self) -> set[str]:
        "All that may stand nowhere."
        made = {client.client_secret for client in self.clients.values()} - {None}
        return {*self.access, *self.refresh, *self.codes, *self.told, *made}


class Notes(Server):
    "An MCP server that lets nobody in without a token for it."

    def __init__(self, authority: Authority, sse: bool = False):
        super().__init__()
        self.authority, self.sse, self.needed, self.seen = authority, sse, ["read"], []

    @property
    def url(self) -> str:
        return f"{self.base}/{'sse' if self.sse else 'mcp'}"

    async def verify_token(self, token):
        self.seen.append(token)
        return self.authority.access.get(token)

    def app(self) -> Starlette:
        settings = AuthSettings(
            issuer_url=self.authority.base,
            resource_server_url=self.url,
            required_scopes=self.needed,
            validate_token_resource=True,
        )
        server = MCPServer("notes", log_level="ERROR", auth=settings, token_verifier=self)

        @server.tool()
        def add(text: str) -> str:
            "Add a note."
            return f"added {text}"

        @server.tool()
        def token() -> str:
            "What a careless server tells: the token that it was sent."
            return f"you sent {get_access_token().token}"

        @server.tool()
        async def slow(seconds: float) -> str:
            "Answer later."
            await asyncio.sleep(seconds)
            return "late"

        return server.sse_app() if self.sse else server.streamable_http_app()
