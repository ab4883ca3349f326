"""State of this machine for ``tsfm-lens doctor``, and its display.

Read :func:`examine` first: it collects plain values, of which :func:`render` makes
tables. Nothing is installed or fetched.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsfm_lens.core.errors import install_command
from tsfm_lens.models.extras import (
    installed,
    missing_packages,
    packages_of_extras,
)

if TYPE_CHECKING:
    from rich.table import Table

    from tsfm_lens.testing import OracleResult

_PACKAGES = (
    *(
        "tsfm-lens-toolbox",
        "torch",
        "transformers",
        "transformer-lens",
        "chronos-forecasting",
        "gluonts",
    ),
    *("huggingface-hub", "safetensors", "numpy", "pandas", "xarray", "plotly"),
)
_GET_BROWSER = (
    "none found; Debian and Ubuntu: apt install chromium; elsewhere: "
    "kaleido_get_chrome; or set BROWSER_PATH to one"
)
Facts = dict[str, Any]
"""What ``tsfm-lens doctor --json`` prints; see :func:`examine`."""


def examine() -> Facts:
    """Examine packages, devices, hub cache, browser and checkpoints.

    Nothing is fetched, and no model is opened.

    Returns:
        Facts by name.
    """
    import torch

    from tsfm_lens.models.architecture import extras as optional_libraries
    from tsfm_lens.zoo import checkpoint_names

    libraries = optional_libraries()
    extras = [
        {
            "name": name,
            "title": extra.title,
            "version": next(iter(extra.versions.values())),
            "tested": next(iter(extra.distributions.values())),
            "missing": list(extra.missing),
            "install": list(extra.install),
        }
        for name, extra in libraries.items()
    ]
    packages = [
        {
            "name": name,
            "packages": needed,
            "missing": missing_packages(name),
            "install": install_command(name),
        }
        for name, needed in packages_of_extras().items()
        if name not in libraries
    ]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {package: installed(package) for package in _PACKAGES},
        "extras": extras,
        "packages": packages,
        "devices": _devices(),
        "threads": torch.get_num_threads(),
        "hub": _hub(),
        "static": _static(),
        "embedded": list(checkpoint_names()),
    }


def plain_oracles(results: Sequence[OracleResult]) -> list[dict[str, Any]]:
    """Convert oracle results for JSON.

    An error that is not a finite number becomes None.

    Returns:
        A record of each result.
    """
    return [
        {
            **asdict(result),
            # JSON has neither NaN nor infinity
            "error": result.error if math.isfinite(result.error) else None,
            "passed": result.passed,
        }
        for result in results
    ]


def render(facts: Facts) -> Iterator[Table]:
    """Yield the tables that a person reads."""
    system = [("python", facts["python"]), ("platform", facts["platform"])]
    versions = [
        (package, version or "not installed")
        for package, version in facts["versions"].items()
    ]
    yield _table("System", ("", ""), [*system, *versions])
    extras = [
        (e["name"], e["title"], e["version"] or "–", e["tested"], _advice(e))
        for e in facts["extras"]
    ]
    yield _table(
        "Model libraries",
        ("extra", "models", "version", "tested with", "to do"),
        extras,
    )
    rest = [
        (entry["name"], ", ".join(entry["packages"]), _cure(entry))
        for entry in facts["packages"]
    ]
    yield _table("Other extras", ("extra", "packages", "to do"), rest)
    devices = [
        (device["name"], device["title"], _size(device["memory"]))
        for device in facts["devices"]
    ]
    # the first device is the cpu, whose threads are torch's and not the machine's
    name, title, memory = devices[0]
    devices[0] = (name, f"{title}, {facts['threads']} threads for torch", memory)
    yield _table("Devices", ("device", "", "memory"), devices)
    hub = facts["hub"]
    folder = hub["folder"]
    if not hub["exists"]:
        folder = f"{folder} (not there: nothing was fetched yet)"
    yield _table(
        "Hub cache",
        ("", ""),
        [
            ("folder", folder),
            ("size", _size(hub["size"])),
            ("offline", "yes: nothing will be fetched" if hub["offline"] else "no"),
            *hub["flags"].items(),
            ("published models", f"{len(hub['models'])} of {hub['known']} are here"),
            *((model, _size(size)) for model, size in hub["models"].items()),
        ],
    )
    static = facts["static"]
    rows = [(name, static[name] or "–") for name in ("kaleido", "browser")]
    yield _table(
        "Figures as png, svg, pdf",
        ("", ""),
        [*rows, ("to do", static["missing"] or "nothing")],
    )
    yield _table(
        "Embedded checkpoints",
        ("", ""),
        [(name, f"load({name!r})") for name in facts["embedded"]],
    )


def _table(title: str, header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"\n{title}",
        box=None,
        pad_edge=False,
        show_header=any(header),
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _cure(extra: Facts) -> str:
    """Say what installs the missing packages of an extra.

    Returns:
        The text, "nothing" if none is missing.
    """
    if extra["missing"]:
        return f"missing {', '.join(extra['missing'])}: {extra['install']}"
    return "nothing"


def _advice(extra: Facts) -> str:
    if extra["missing"]:
        return f"missing {', '.join(extra['missing'])}: {' && '.join(extra['install'])}"
    if extra["version"] == extra["tested"]:
        return "nothing"
    return f"if it fails: {extra['install'][-1]}"


def _size(amount: int | None) -> str:
    if amount is None:
        return "–"
    size = float(amount)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _devices() -> list[Facts]:
    import torch

    try:
        memory: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        # not every system has sysconf or these two numbers
        memory = None
    devices: list[tuple[str, str, int | None]] = [
        ("cpu", f"{platform.machine()}, {os.cpu_count()} cores", memory)
    ]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            devices.append((f"cuda:{index}", card.name, card.total_memory))
    # Apple's GPU has no memory of its own, but shares that of the machine
    if torch.backends.mps.is_available():
        devices.append(("mps", "Apple GPU", None))
    return [
        dict(zip(("name", "title", "memory"), device, strict=True))
        for device in devices
    ]


def _hub() -> Facts:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from tsfm_lens.models.locating import published_ids

    # a cache has many models; only those that the library opens are listed
    hub_ids = set(published_ids())
    flags = {
        name: os.environ[name]
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        if name in os.environ
    }
    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        size = 0
        models = {}
    else:
        size = cache.size_on_disk
        models = {
            repo.repo_id: repo.size_on_disk
            for repo in sorted(cache.repos, key=lambda repo: repo.repo_id)
            if repo.repo_type == "model"
            and repo.repo_id in hub_ids
            # a cache may have the configuration of a model, and no weights
            and any(
                file.file_name.endswith(".safetensors")
                for rev in repo.revisions
                for file in rev.files
            )
        }
    return {
        "folder": constants.HF_HUB_CACHE,
        "exists": Path(constants.HF_HUB_CACHE).is_dir(),
        "size": size,
        "models": models,
        "known": len(hub_ids),
        "offline": bool(constants.HF_HUB_OFFLINE),
        "flags": flags,
    }


def _static() -> Facts:
    version = installed("kaleido")
    browser = None
    # kaleido before version 1 brought its own browser, and no choreographer
    if version is None or find_spec("choreographer") is None:
        return {"kaleido": None, "browser": None, "missing": install_command("static")}
    from choreographer.browsers.chromium import Chromium

    program = Chromium.find_browser(skip_local=False)
    missing = ""
    if not program:
        missing = _GET_BROWSER
    elif not Path(program).is_file():
        # choreographer takes the variable as it is, without a look at the file
        missing = f"BROWSER_PATH names {program}, which is not a file"
    else:
        browser = str(program)
    return {"kaleido": version, "browser": browser, "missing": missing}
