"""Guard of the local server: which requests it admits, and how many pages run.

Read :class:`Unwelcome` first. A request must name this machine and carry the token of
the address; :class:`Server` puts this before every handler of Voilà.
"""

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
        self._hosts = {f"{name}:{port}" for name in _NAMES}
        # a browser leaves out the port of plain HTTP
        if port == 80:
            self._hosts |= set(_NAMES)

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Return a match for a request that is to be refused.

        Its query, which holds the token, is removed from all that is logged about it.
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
        origin = f"http://{host}"
        if any(
            headers.get(name, origin) != origin
            for name in ("Origin", "Sec-Websocket-Origin")
        ):
            return "Another page requested this one, which is not allowed."
        if _OPEN.match(request.path):
            return None
        # in constant time, so that an answer's delay does not give the token away
        if hmac.compare_digest(_token(request), self._token):
            return None
        return (
            "This page needs its full address with the token, as tsfm-lens serve"
            " printed it."
        )


def _token(request: HTTPServerRequest) -> bytes:
    """Return the token of a request, empty without one.

    It is in the query, or in the Authorization header.
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
    """Answer to an unwelcome request of any method: status 403 and the reason."""

    def initialize(self, words: str) -> None:
        """Keep the reason, which tornado gives."""
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
    """First state of the page: a line until its Python runs, which sends the rest."""

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
        """Open the address in the browser, through a file.

        An address with the token on a command line would be seen by every user of the
        machine.
        """
        path = Path(self.notebook_path).with_name("open.html")
        address = f"{self.connection_url}?token={self.token}"
        path.write_text(
            f'<meta http-equiv="refresh" content="0;url={address}">', encoding="utf-8"
        )
        threading.Thread(
            target=webbrowser.open, args=(path.as_uri(),), daemon=True
        ).start()
