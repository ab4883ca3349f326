"""Guard of the local server: the requests that it admits, and the number of pages."""

from __future__ import annotations

import asyncio
import hmac
import re
import threading
import webbrowser
from pathlib import Path
from typing import Any

from jupyter_server.auth import IdentityProvider
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher
from tornado.web import HTTPError, RequestHandler
from voila.app import Voila

# pages that run at once, each with a Python of its own; with a model it takes about 700
# MB
PAGES = 4
_NAMES = ("127.0.0.1", "localhost", "[::1]")
# static files, and the farewell of a page, which a browser sends without the token and
# Voilà lets in by its cookie
_OPEN = re.compile(
    r"/voila/(?:static|labextensions|api/themes|api/shutdown)/"
    # Voilà's own handler fails on any other path of its templates
    r"|/voila/templates/[^/]+/static/."
)


class Pages(AsyncMappingKernelManager):
    """Kernels of the pages, at most :data:`PAGES`."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._turn = asyncio.Lock()

    async def start_kernel(self, **options: Any) -> str:  # type: ignore[override]
        """Start the kernel of a page."""
        # one after another: a kernel counts only once it has started
        async with self._turn:
            if len(self) >= PAGES:
                raise HTTPError(
                    503,
                    reason=(
                        f"too many pages are open ({PAGES}); close one and load this"
                        " one again"
                    ),
                )
            return str(await super().start_kernel(**options))


class Unwelcome(Matcher):
    """Requests with a foreign host or origin, or without the token."""

    def __init__(self, port: int, token: str) -> None:
        self._token = token.encode()
        # a browser leaves out the port of plain HTTP
        self._hosts = {
            f"{name}{end}"
            for name in _NAMES
            for end in ([f":{port}", ""] if port == 80 else [f":{port}"])
        }

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Match a request, and remove its query, which holds the token, from all that
        is logged about it.
        """
        request.uri = request.path
        text = self._objection(request)
        if text is None:
            return None
        return {"target_kwargs": {"words": text}}

    def _objection(self, request: HTTPServerRequest) -> str | None:
        headers = request.headers
        host = headers.get("Host", "").lower()
        if host not in self._hosts:
            return (
                f"This page is only at {', '.join(sorted(self._hosts))}, not at the"
                " address that you opened."
            )
        if any(
            headers.get(name, f"http://{host}") != f"http://{host}"
            for name in ("Origin", "Sec-Websocket-Origin")
        ):
            return "Another page requested this one, which is not allowed."
        if _OPEN.match(request.path) or hmac.compare_digest(
            _token(request), self._token
        ):
            return None
        return (
            "This page needs its full address with the token, as tsfm-lens serve"
            " printed it."
        )


def _token(request: HTTPServerRequest) -> bytes:
    """Return the token of a request, from its query or its Authorization header; empty
    without one.
    """
    tokens = request.query_arguments.get("token")
    header = IdentityProvider.auth_header_pat.match(
        request.headers.get("Authorization", "")
    )
    if tokens:
        return tokens[-1]
    if header:
        return header[2].encode()
    return b""


class Refusal(RequestHandler):
    """Answer to an unwelcome request, with whatever method: status 403 and the reason
    in words.
    """

    def initialize(self, words: str) -> None:
        self._words = words

    def prepare(self) -> None:
        """Send the refusal."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self._words + "\n")


class Fresh(Matcher):
    """Requests for the page that do not ask to run it yet."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Match a request by its path and query."""
        if request.path == "/" and "run" not in request.query_arguments:
            return {}
        return None


class Opening(RequestHandler):
    """First sight of the page: a line that stands until its Python runs, which sends
    the rest.
    """

    def get(self) -> None:
        """Send the line."""
        self.finish(
            '<!DOCTYPE html><html lang="en"><meta'
            ' charset="utf-8"><title>tsfm-lens</title>'
            '<p role="status" class="tsfm-lens-status"'
            ' style="font-family:sans-serif">Starting Python …</p>'
            # a moment in which the line is drawn
            '<script>setTimeout(() => location.replace(location.href + "&run="),'
            " 50)</script></html>"
        )


class Server(Voila):
    """Voilà behind the guard; ``token`` must be set."""

    def init_handlers(self) -> list[Any]:
        """Return handlers of Voilà, all of them behind the guard."""
        return [
            (Unwelcome(self.port, self.token), Refusal),
            (Fresh(), Opening),
            *super().init_handlers(),
        ]

    def launch_browser(self) -> None:
        """Open the address in the browser, through a file, since everybody on the
        machine sees a command line.
        """
        path = Path(self.notebook_path).with_name("open.html")
        address = f"{self.connection_url}?token={self.token}"
        path.write_text(
            f'<meta http-equiv="refresh" content="0;url={address}">', encoding="utf-8"
        )
        threading.Thread(
            target=webbrowser.open, args=(path.as_uri(),), daemon=True
        ).start()
