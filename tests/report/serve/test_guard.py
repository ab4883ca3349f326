"""The guard of the local server, on a real one: who gets in on each channel, and how
many pages run.
"""

from __future__ import annotations

import http.client
import os
import queue
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

pytest.importorskip("voila")

import websocket
from tornado.web import create_signed_value

from browsing import PATIENCE, until
from tsfm_lens.report.serve import guard

LIMIT = 2
# a page without a model, which starts faster
SCRIPT = f"""
import os
from tsfm_lens.report.serve import guard, server
guard.PAGES = {LIMIT}
write = server._notebook
def notebook(folder, given):
    path = write(folder, given)
    imported = "from tsfm_lens.report.serve.page import Page"
    path.write_text(path.read_text().replace(imported, "Page = dict"))
    return path
server._notebook = notebook
def show(address):
    print(address, flush=True)
server.serve(port=20_000 + os.getpid() % 10_000, browser=False, started=show)
"""


class Served:
    """A running server and its first page."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        until(
            lambda: "\n" in log.read_text() or process.poll() is not None, "no address"
        )
        address = urlsplit(log.read_text().splitlines()[0])
        self.token = address.query.removeprefix("token=")
        self.port = address.port
        # the address is told once a browser can connect
        assert self.ask("/voila/static/voila.js").status == 200
        page = self.open()
        self.kernel = make_kernel(page)
        self.cookie = page.headers["Set-Cookie"].split(";")[0]
        self.paths = {
            "page": "/",
            "kernel": f"/api/kernels/{self.kernel}",
            "websocket": f"/api/kernels/{self.kernel}/channels",
            "login": "/login",
            "files": "/voila/files/tsfm-lens.ipynb",
            "none": "/no/such/page",
            "farewell": f"/voila/api/shutdown/{self.kernel}",
            "static": "/voila/static/voila.js",
        }

    @property
    def kernels(self) -> set[int]:
        return {
            child.pid
            for child in psutil.Process(self.process.pid).children(recursive=True)
        }

    def ask(
        self, path: str, host: str | None = "127.0.0.1:{port}", **headers: str
    ) -> SimpleNamespace:
        """Status, text and headers of an answer; ``{port}`` in a header stands for the
        port.
        """
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=PATIENCE
        )
        connection.putrequest(
            "POST" if "shutdown" in path else "GET", path, skip_host=True
        )
        for name, value in {"Host": host, **headers}.items():
            if value is not None:
                connection.putheader(name, value.format(port=self.port))
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return SimpleNamespace(status=answer.status, text=text, headers=answer.headers)

    def open(self) -> SimpleNamespace:
        return self.ask(f"/?token={self.token}&run=")

    def status(
        self,
        channel: str,
        token: str | None,
        host: str = "127.0.0.1:{port}",
        **headers: str,
    ) -> int:
        """Status of an answer on a channel; 101 if a websocket opens."""
        path = self.paths[channel] + ("" if token is None else f"?token={token}")
        if channel != "websocket":
            return int(self.ask(path, host, **headers).status)
        options: dict[str, Any] = {"host": host.format(port=self.port)}
        options |= {
            name.lower(): value.format(port=self.port)
            for name, value in headers.items()
        }
        options.setdefault("suppress_origin", "origin" not in options)
        try:
            socket = websocket.create_connection(
                f"ws://127.0.0.1:{self.port}{path}", timeout=PATIENCE, **options
            )
        except websocket.WebSocketBadStatusException as error:
            return int(error.status_code)
        socket.close()
        return 101


def make_kernel(page: SimpleNamespace) -> str:
    assert page.status == 200, page.text
    match = re.search(r'"kernelId": "([\w-]+)"', page.text)
    assert match
    return match[1]


def of_an_earlier_server(cookie: str) -> str:
    """The same cookie, as a server with another secret signed it."""
    name, value = cookie.split("=", 1)
    signed = value.strip('"').encode()
    user = b64decode(signed.split(b"|")[4].split(b":")[1])
    return f"{name}={create_signed_value('another secret', name, user).decode()}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    # settings that lie in the working folder
    (folder / "voila.json").write_text('{"Voila": {"token": "", "ip": "0.0.0.0"}}')
    folders = {
        name: str(folder / name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    tree = {"PYTHONPATH": str(Path(guard.__file__).parents[3])}
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-c", SCRIPT]
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **folders, **tree},
        )
    try:
        yield Served(process, folder / "log")
    finally:
        process.terminate()
        process.wait(PATIENCE)


CHANNELS = (
    "page",
    "kernel",
    "websocket",
    "login",
    "files",
    "none",
    "farewell",
    "static",
)
ADDRESSES = ("127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LocalHost:{port}")
HOSTS = (
    *(
        "evil.example:{port}",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:{port}.evil.example",
    ),
    *("localhost.evil.example:{port}", "0.0.0.0:{port}", "127.0.0.2:{port}"),
)
ORIGINS = (
    *(
        "http://evil.example",
        "http://evil.example:{port}",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "null",
    ),
    *(
        "http://localhost:{port}",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:{port}.evil.example",
    ),
)


@pytest.mark.parametrize("host", ADDRESSES)
def test_token_works_at_every_local_name(served: Served, host: str) -> None:
    """The token lets in at every name of this machine."""
    origin = f"http://{host.lower()}"
    assert served.status("kernel", served.token, host) == 200
    assert served.status("kernel", served.token, host, Origin=origin) == 200
    assert served.status("websocket", served.token, host) == 101
    assert served.status("websocket", served.token, host, Origin=origin) == 101
    assert (
        served.ask(
            served.paths["kernel"], host, Authorization=f"token {served.token}"
        ).status
        == 200
    )


@pytest.mark.parametrize("channel", CHANNELS)
def test_foreign_hosts_and_origins_are_refused(served: Served, channel: str) -> None:
    """A foreign host or origin is refused on every channel."""
    before = served.kernels
    refused = {host: served.status(channel, served.token, host) for host in HOSTS}
    refused |= {
        origin: served.status(channel, served.token, Origin=origin)
        for origin in ORIGINS
    }
    # as after DNS has been rebound: both are foreign, and agree
    foreign = "evil.example:{port}"
    refused["both"] = served.status(
        channel, served.token, foreign, Origin=f"http://{foreign}"
    )
    assert set(refused.values()) == {403}, refused
    assert served.kernels == before


@pytest.mark.parametrize(
    "channel", [item for item in CHANNELS if item not in ("farewell", "static")]
)
def test_nothing_but_the_token_lets_in(served: Served, channel: str) -> None:
    before = served.kernels
    token = served.token
    wrong = [
        None,
        "",
        "x",
        token[:-1],
        token + "0",
        token + "%00",
        "0" * len(token),
        f"x&token={token}&token=x",
    ]
    statuses = {str(item): served.status(channel, item) for item in wrong}
    for cookie in (served.cookie, of_an_earlier_server(served.cookie)):
        statuses[cookie] = served.status(channel, None, Cookie=cookie)
        statuses[f"{cookie} from here"] = served.status(
            channel, None, Cookie=cookie, Origin=f"http://127.0.0.1:{served.port}"
        )
    assert set(statuses.values()) == {403}, statuses
    assert served.kernels == before


def test_refusals_explain_and_static_files_open(served: Served) -> None:
    """A refusal says why, and static files need no token."""
    assert "with the token" in served.ask("/").text
    assert "is only at" in served.ask("/", "evil.example").text
    assert served.status("static", None) == 200
    # what is open leads nowhere else
    for path in (
        "static/../../../../../../../../etc/passwd",
        "static/%2e%2e/%2e%2e/app.py",
        "static/../api/kernels/x",
    ):
        assert served.ask(f"/voila/{path}").status in (403, 404), path
    assert served.ask("/voila/templates/lab/static/voila.js").status == 200
    for path in (
        "templates/x",
        "templates/lab",
        "templates/lab/static",
        "templates/lab/other/x",
        "templates/",
        "static",
    ):
        assert served.ask(f"/voila/{path}").status in (403, 404), path
    assert "Traceback" not in served.log.read_text()
    # without any host, and with two
    assert served.ask(f"/?token={served.token}", None).status in (400, 403)


def test_waiting_line_appears_before_python(served: Served) -> None:
    """A line says what happens before any Python runs."""
    before = served.kernels
    assert "Starting Python …" in served.ask(f"/?token={served.token}").text
    assert served.kernels == before


def test_open_pages_are_limited(served: Served) -> None:
    """As many pages as allowed are opened and no more."""
    # all at once, as a browser opens its tabs again
    with ThreadPoolExecutor(LIMIT + 2) as pool:
        pages = sorted(
            pool.map(lambda _: served.open(), range(LIMIT + 2)),
            key=lambda page: page.status,
        )
    second, *refused = pages
    assert 'textContent = "Opening bolt-nano and forecasting' in second.text
    kernel = make_kernel(second)
    before = served.kernels
    assert len(before) == LIMIT
    for page in refused:
        assert page.status == 503
        assert f"too many pages are open ({LIMIT}); close one" in page.text
    # an old cookie, or none, ends nobody's page; the page's own does when it is closed,
    # and then there is room
    farewell = f"/voila/api/shutdown/{kernel}"
    cookie = second.headers["Set-Cookie"].split(";")[0]
    assert served.ask(farewell).status == 403
    assert served.ask(farewell, Cookie=of_an_earlier_server(cookie)).status == 403
    assert served.kernels == before
    origin = f"http://127.0.0.1:{served.port}"
    assert served.ask(farewell, Cookie=cookie, Origin=origin).status == 204
    until(
        lambda: len(served.kernels) == LIMIT - 1,
        "the page is closed and its kernel runs",
    )
    third = make_kernel(served.open())
    assert served.ask(f"/voila/api/shutdown/{third}?token={served.token}").status == 204


def test_token_stays_out_of_the_log(served: Served) -> None:
    """The token is not written to the log."""
    for path in (
        "/no/such/page",
        "/api/kernels/0-0-0-0-0",
        "/voila/templates/broken",
        "/voila/static/none.js",
    ):
        served.ask(f"{path}?token={served.token}")
        served.ask(f"{path}?token={served.token}", "evil.example")
        served.ask(path, Authorization=f"token {served.token}")
    first, *rest = served.log.read_text().splitlines()
    assert served.token in first
    assert any(
        "Uncaught exception GET /voila/templates/broken" in line for line in rest
    )
    assert not [line for line in rest if served.token in line]


def test_browser_address_hides_from_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser opens the address without showing the token on a command line."""
    opened: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(guard.webbrowser, "open", opened.put)
    server = guard.Server(
        notebook_path=str(tmp_path / "a.ipynb"),
        ip="127.0.0.1",
        port=8866,
        token="secret",
    )
    server.launch_browser()
    uri = opened.get(timeout=PATIENCE)
    assert uri == (tmp_path / "open.html").as_uri()
    assert (
        "url=http://127.0.0.1:8866/?token=secret"
        in (tmp_path / "open.html").read_text()
    )
