"""Facts about this machine for ``tsfm-lens doctor``, and their display."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsfm_lens.models.extras import installed, status

if TYPE_CHECKING:
    from rich.table import Table

    from tsfm_lens.testing import OracleResult

_PACKAGES = (
    "tsfm-lens-toolbox",
    "torch",
    "transformers",
    "transformer-lens",
    "chronos-forecasting",
    "gluonts",
    "huggingface-hub",
    "safetensors",
    "numpy",
    "pandas",
    "xarray",
    "plotly",
)
_GET_BROWSER = (
    "none found; Debian and Ubuntu: apt install chromium; elsewhere: kaleido_get_chrome; or set BROWSER_PATH to one"
)


@dataclass(frozen=True)
class ExtraFact:
    """One optional model library.

    Attributes:
        name, title: of the extra.
        version: installed, or None.
        tested: the version that the wirings were tested with.
        missing: packages and modules that are not there.
        install: the commands that install it.
    """

    name: str
    title: str
    version: str | None
    tested: str
    missing: tuple[str, ...]
    install: tuple[str, ...]


@dataclass(frozen=True)
class Device:
    """Device on which a model can run.

    Attributes:
        name: as ``load(device=…)`` takes it.
        title: of the hardware.
        memory: bytes in all, or None where the system does not say.
    """

    name: str
    title: str
    memory: int | None


@dataclass(frozen=True)
class HubCache:
    """Local cache of the Hugging Face hub.

    Attributes:
        folder: where it is.
        exists: whether anything was ever fetched into it.
        size: bytes.
        models: hub id -> bytes, of the published models whose weights it holds.
        known: how many published models there are.
        offline: whether the hub is off limits.
        flags: environment variables that bear on it, as they are set.
    """

    folder: str
    exists: bool
    size: int
    models: dict[str, int]
    known: int
    offline: bool
    flags: dict[str, str]


@dataclass(frozen=True)
class Static:
    """Requirements for writing png, svg and pdf.

    Attributes:
        kaleido: installed version, or None.
        browser: the program that kaleido would start, or None.
        missing: what to do about what is missing; empty when all is there.
    """

    kaleido: str | None
    browser: str | None
    missing: str


@dataclass(frozen=True)
class Facts:
    """Facts that decide what tsfm-lens can do here.

    Attributes:
        python, platform: version and system.
        versions: package -> installed version, or None.
        extras: the optional model libraries.
        devices: the processor first.
        threads: that torch uses on the processor.
        hub: the hub cache.
        static: static export of figures.
        embedded: checkpoints in the package.
    """

    python: str
    platform: str
    versions: dict[str, str | None]
    extras: tuple[ExtraFact, ...]
    devices: tuple[Device, ...]
    threads: int
    hub: HubCache
    static: Static
    embedded: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return lists, dictionaries, text and numbers."""
        return asdict(self)


def examine() -> Facts:
    """Look at packages, devices, hub cache, browser and checkpoints; nothing is fetched, no model is opened."""
    import torch

    from tsfm_lens.zoo import checkpoint_names

    extras = tuple(
        ExtraFact(
            name,
            state.extra.title,
            state.version,
            next(iter(state.extra.distributions.values())),
            state.missing,
            state.extra.install,
        )
        for name, state in status().items()
    )
    return Facts(
        python=platform.python_version(),
        platform=platform.platform(),
        versions={package: installed(package) for package in _PACKAGES},
        extras=extras,
        devices=tuple(_devices()),
        threads=torch.get_num_threads(),
        hub=_hub(),
        static=_static(),
        embedded=checkpoint_names(),
    )


def plain_oracles(results: Sequence[OracleResult]) -> list[dict[str, Any]]:
    """Convert oracle results for JSON: an error that is no finite number becomes None."""
    return [
        {**asdict(result), "error": result.error if math.isfinite(result.error) else None, "passed": result.passed}
        for result in results
    ]


def render(facts: Facts) -> Iterator[Table]:
    """Yield the tables that a person reads."""
    yield _table(
        "System",
        ("", ""),
        [
            ("python", facts.python),
            ("platform", facts.platform),
            *((package, version or "not installed") for package, version in facts.versions.items()),
        ],
    )
    yield _table(
        "Model libraries",
        ("extra", "models", "version", "tested with", "to do"),
        [(e.name, e.title, e.version or "–", e.tested, _advice(e)) for e in facts.extras],
    )
    devices = [(each.name, each.title, _size(each.memory)) for each in facts.devices]
    devices[0] = (devices[0][0], f"{devices[0][1]}, {facts.threads} threads for torch", devices[0][2])
    yield _table("Devices", ("device", "", "memory"), devices)
    hub = facts.hub
    yield _table(
        "Hub cache",
        ("", ""),
        [
            ("folder", hub.folder if hub.exists else f"{hub.folder} (not there: nothing was fetched yet)"),
            ("size", _size(hub.size)),
            ("offline", "yes: nothing will be fetched" if hub.offline else "no"),
            *hub.flags.items(),
            ("published models", f"{len(hub.models)} of {hub.known} are here"),
            *((model, _size(size)) for model, size in hub.models.items()),
        ],
    )
    static = facts.static
    rows = [("kaleido", static.kaleido or "–"), ("browser", static.browser or "–")]
    yield _table("Figures as png, svg, pdf", ("", ""), [*rows, ("to do", static.missing or "nothing")])
    yield _table("Embedded checkpoints", ("", ""), [(name, f"load({name!r})") for name in facts.embedded])


def _table(title: str, header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_header=any(header),
        header_style="dim",
    )
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _advice(extra: ExtraFact) -> str:
    if extra.missing:
        return f"missing {', '.join(extra.missing)}: {' && '.join(extra.install)}"
    return "nothing" if extra.version == extra.tested else f"if it fails: {extra.install[-1]}"


def _size(amount: int | None) -> str:
    if amount is None:
        return "–"
    size = float(amount)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _devices() -> Iterator[Device]:
    import torch

    yield Device("cpu", f"{platform.machine()}, {os.cpu_count()} cores", _memory())
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            yield Device(f"cuda:{index}", card.name, card.total_memory)
    if torch.backends.mps.is_available():
        yield Device("mps", "Apple GPU", None)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        # not every system has sysconf or these two numbers
        return None


def _hub() -> HubCache:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from tsfm_lens.models.architecture import architectures

    hub_ids = {hub_id for entry in architectures().values() for hub_id in entry.published.values()}
    flags = {name: os.environ[name] for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if name in os.environ}
    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        size, models = 0, {}
    else:
        size = cache.size_on_disk
        models = {
            repo.repo_id: repo.size_on_disk
            for repo in sorted(cache.repos, key=lambda repo: repo.repo_id)
            if repo.repo_type == "model"
            and repo.repo_id in hub_ids
            and any(file.file_name.endswith(".safetensors") for rev in repo.revisions for file in rev.files)
        }
    return HubCache(
        folder=constants.HF_HUB_CACHE,
        exists=Path(constants.HF_HUB_CACHE).is_dir(),
        size=size,
        models=models,
        known=len(hub_ids),
        offline=bool(constants.HF_HUB_OFFLINE),
        flags=flags,
    )


def _static() -> Static:
    version = installed("kaleido")
    if version is None or find_spec("choreographer") is None:
        return Static(None, None, 'pip install "tsfm-lens-toolbox[static]"')
    from choreographer.browsers.chromium import Chromium

    browser = Chromium.find_browser(skip_local=False)
    if not browser:
        return Static(version, None, _GET_BROWSER)
    if not Path(browser).is_file():
        return Static(version, None, f"BROWSER_PATH names {browser}, which is no file")
    return Static(version, str(browser), "")
