"""Local server of the page: Voilà, bound to this machine, for one notebook.

Read :func:`serve` first. The page is in ``page.py``; which requests are admitted is
decided in ``guard.py``.
"""

from __future__ import annotations

import json
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tsfm_lens.core.errors import InputError

__all__ = ["serve"]

HOST = "127.0.0.1"
# seconds without a page after which its kernel ends
IDLE = 120
FILE_LIMIT = 100 * 2**20
"""Bytes of the largest file that the page reads; it is sent in one message, with its
name.
"""
# in the place of Voilà's count of cells; a page that is loaded anew starts from its
# first line
_LOADING = """<script>
document.getElementById("loading_text").textContent = %s;
window.voila_process = () => {};
const lost = document.createElement("p");
lost.setAttribute("role", "alert");
lost.className = "tsfm-lens-lost";
lost.style = "position:sticky;top:0;z-index:9;margin:0;padding:8px;\
background:#fdecea;color:#a1260d;font-weight:600";
lost.textContent = "The connection to tsfm-lens serve is lost, \
and this page reads nothing now. " +
  "If the server still runs, load the page again.";
window.WebSocket = class extends WebSocket {
  constructor(...parts) {
    super(...parts);
    this.addEventListener("open", () => lost.remove());
    this.addEventListener("close", () => document.body.prepend(lost));
  }
};
history.replaceState(null, "", location.href.replace("&run=", ""));
</script>"""


def serve(
    model: str = "bolt-nano",
    sources: Sequence[str] = ("bundled:co2",),
    *,
    reading: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    port: int = 8866,
    browser: bool = True,
    started: Callable[[str], None] | None = None,
) -> None:
    """Open the page and serve it until it is interrupted.

    It listens on 127.0.0.1 alone and refuses every request with a foreign host or
    origin, or without the token of the address. Every page has a Python of its own,
    which ends with it, and no more than ``guard.PAGES`` run at once.

    Args:
        model: chosen when the page opens.
        sources: files and ``bundled:NAME`` chosen when the page opens.
        reading: of the files; see :func:`tsfm_lens.data.read_series`.
        options: ``horizon``, ``holdout``, ``num_samples`` and ``seed`` when the page
            opens.
        port: the next free one from here on.
        browser: open it in the browser.
        started: called with the address once a browser can connect to it.

    Raises:
        InputError: no port from ``port`` on is free.
        MissingExtraError: the notebook libraries are not installed.

    Example:
        >>> serve.serve("chronos-nano", ["load.csv"])  # doctest: +SKIP
    """
    from tsfm_lens.report.explore.opening import need

    need("serve", "voila")
    from tornado.ioloop import IOLoop

    from tsfm_lens.report.serve.guard import Server

    # tried here and not by Voilà, since the policy and the address need the port before
    # it starts
    free_port = _free(port)
    token = secrets.token_hex(16)
    arguments = {
        "model": model,
        "sources": [
            source if source.startswith("bundled:") else str(Path(source).resolve())
            for source in sources
        ],
        "reading": dict(reading or {}),
        "options": dict(options or {}),
    }
    with tempfile.TemporaryDirectory(prefix="tsfm-lens-") as folder:
        notebook = _notebook(Path(folder), arguments)
        if started is not None:
            address = f"http://{HOST}:{free_port}/?token={token}"
            # run by the loop of the server, which it starts once it listens
            IOLoop.current().add_callback(started, address)
        # SIGINT and SIGTERM both end the server so that it closes its kernels; a shell
        # that starts it in the background has set SIGINT to be ignored
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler)
        settings = _settings(free_port, token, browser=browser)
        Server.launch_instance([str(notebook)], config=settings)


def _free(port: int) -> int:
    """Return the first free port from ``port`` on."""
    for candidate in range(port, min(port + 100, 65536)):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, candidate))
            except OSError:
                continue
            return candidate
    raise InputError(f"no port from {port} on is free; give another with --port")


def _notebook(folder: Path, arguments: Mapping[str, Any]) -> Path:
    import nbformat

    lines = [
        "import json",
        "from tsfm_lens.report.serve.page import Page",
        f"Page(**json.loads({json.dumps(arguments)!r}))",
    ]
    text = json.dumps(f"Opening {arguments['model']} and forecasting …")
    # the text stands inside a script element, which no name of a model may end
    text = text.replace("<", "\\u003c")
    cells = [
        nbformat.v4.new_markdown_cell(_LOADING % text),
        nbformat.v4.new_code_cell("\n".join(lines)),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    notebook.metadata["title"] = "tsfm-lens"
    path = folder / "tsfm-lens.ipynb"
    nbformat.write(notebook, path)
    return path


def _settings(port: int, token: str, *, browser: bool) -> Any:
    from traitlets.config import Config

    from tsfm_lens.report.serve.guard import Pages

    # the browser itself refuses whatever would come from, or go to, another place
    policy = (
        "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src"
        f" 'self' ws://{HOST}:{port}; frame-ancestors 'none'; form-action 'self'"
    )
    return Config(
        {
            "Voila": {
                "ip": HOST,
                "port": port,
                "port_retries": 0,
                "open_browser": browser,
                "log_level": "ERROR",
                "token": token,
                # a file of settings in the working folder could open the door again
                "config_file_paths": [],
                "tornado_settings": {
                    "websocket_max_message_size": FILE_LIMIT + 2**20,
                    # Jupyter's own timeout of pings is longer than their interval, of
                    # which tornado warns on every start
                    "ws_ping_timeout": 30_000,
                    "headers": {"Content-Security-Policy": policy},
                    # the farewell of a page that closes has no XSRF token; the guard
                    # has checked its origin
                    "disable_check_xsrf": True,
                },
            },
            "VoilaConfiguration": {
                "show_tracebacks": False,
                "multi_kernel_manager_class": Pages,
                "page_config_hook": lambda page, **_: (
                    page | {"token": token, "appendToken": "true"}
                ),
            },
            "MappingKernelManager": {
                "cull_idle_timeout": IDLE,
                "cull_interval": IDLE // 4,
                # other users of the machine could listen to what a kernel sends
                "transport_encryption": "auto",
            },
        }
    )
