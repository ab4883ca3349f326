"""A JupyterLab of the tests' own, and a headless Chromium."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from browsing import PATIENCE, until

CELL = """\
import torch
from tsfm_lens import load
from tsfm_lens.data import bundled

torch.set_num_threads(1)
context, truth = bundled("electricity").tail(120).split(12)
view = load("bolt-nano", check=False).run(context, 12, truth=truth).explore()
view"""


@pytest.fixture(scope="session")
def driver(new_browser: Callable[..., Any]) -> Iterator[Any]:
    browser = new_browser("--window-size=1400,1400")
    yield browser
    browser.quit()


@pytest.fixture(scope="session")
def notebook_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a notebook with one cell, in a JupyterLab that keeps what it writes in a folder of its own."""
    folder = tmp_path_factory.mktemp("lab")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / "view.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "ServerApp.root_dir": folder,
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": "secret",
        "LabApp.expose_app_in_browser": True,
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.extension_manager": "readonly",
    }
    command = [sys.executable, "-m", "jupyterlab", *(f"--{key}={value}" for key, value in options.items())]
    own = {
        name: str(folder / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
    }
    own |= {"IPYTHONDIR": str(folder / "ipython"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    log = folder / "log"
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=folder, env={**os.environ, **own}, stdout=out, stderr=out)
    try:
        base = f"http://127.0.0.1:{port}"
        _answers(f"{base}/api/status?token=secret", server, log)
        yield f"{base}/lab/tree/view.ipynb?token=secret"
    finally:
        # the server ends its kernels on the way out
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def _answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE):
                return True
        except OSError:
            assert server.poll() is None, log.read_text()
            return False

    until(answers, log.read_text, 0.2)
