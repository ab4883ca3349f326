"""Optional model libraries: their needs, installation and presence, without importing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from packaging.requirements import Requirement

from tsfm_lens.errors import (
    DISTRIBUTION,
    MissingExtraError,
    install_command,
    missing_extra,
    unknown_name,
)


@dataclass(frozen=True)
class Extra:
    """One optional model library: what is imported, installed, only there in the real one, and needed beside it."""

    name: str
    title: str
    imports: tuple[str, ...]
    distributions: Mapping[str, str]
    proofs: tuple[str, ...]
    needs: tuple[str, ...] = ()
    alone: bool = True
    before: Callable[[], None] | None = None

    @property
    def install(self) -> tuple[str, ...]:
        """Commands that install it, in order."""
        extra = install_command(self.name)
        if not self.alone:
            return (extra,)
        pins = " ".join(
            f"{name}=={version}" for name, version in self.distributions.items()
        )
        return extra, f"pip install --no-deps {pins}"


@dataclass(frozen=True)
class ExtraStatus:
    """Installed parts of one extra."""

    extra: Extra
    versions: Mapping[str, str | None]
    missing: tuple[str, ...]

    @property
    def importable(self) -> bool:
        """True if everything it needs is there; only :func:`require` proves it."""
        return not self.missing

    @property
    def version(self) -> str | None:
        """Installed version of the library, or None."""
        return next(iter(self.versions.values()))


def _stand_in_for_pytree() -> None:
    """Give jaxtyping a ``PyTree`` where there is no jax: uni2ts names it in annotations only."""
    jaxtyping: Any = import_module("jaxtyping")
    try:
        _ = jaxtyping.PyTree
    except (ImportError, AttributeError):
        jaxtyping.PyTree = tuple


EXTRAS: Mapping[str, Extra] = {
    extra.name: extra
    for extra in (
        Extra(
            name="timesfm",
            title="TimesFM",
            imports=("timesfm", "timesfm3"),
            distributions={"timesfm": "3.0.2"},
            proofs=("timesfm:TimesFM_2p5_200M_torch", "timesfm3:TimesFM3Torch"),
            alone=False,
        ),
        Extra(
            name="toto",
            title="Toto",
            imports=("toto",),
            distributions={"timecopilot-toto": "0.1.7"},
            proofs=("toto.model.toto:Toto",),
            needs=("lightning", "rotary-embedding-torch"),
        ),
        Extra(
            name="toto2",
            title="Toto 2",
            imports=("toto2", "dd_unit_scaling"),
            distributions={
                "timecopilot-toto-2": "0.1.1",
                "timecopilot-dd-unit-scaling": "0.1.0",
            },
            proofs=("dd_unit_scaling:LinearReadout", "toto2:Toto2Model"),
            needs=("lightning", "unit-scaling"),
        ),
        Extra(
            name="timestral",
            title="Timestral",
            imports=("timestral",),
            distributions={"timecopilot-timestral": "0.1.0"},
            proofs=("timestral:TimestralForecaster",),
            alone=False,
        ),
        Extra(
            name="moirai",
            title="Moirai",
            imports=("uni2ts",),
            distributions={"timecopilot-uni2ts": "0.1.3"},
            proofs=(
                "uni2ts.model.moirai:MoiraiModule",
                "uni2ts.model.moirai2:Moirai2Module",
            ),
            needs=("lightning", "hydra-core"),
            before=_stand_in_for_pytree,
        ),
        Extra(
            name="fracast",
            title="Fracast",
            imports=("fracast",),
            distributions={"fracast": "0.1.0"},
            proofs=("fracast:FracastModel",),
            alone=False,
        ),
        Extra(
            name="tirex",
            title="TiRex",
            imports=("tirex",),
            distributions={"tirex-ts": "1.4.2"},
            proofs=("tirex.models.tirex:TiRexZero",),
            alone=False,
        ),
        Extra(
            name="ttm",
            title="TinyTimeMixer",
            imports=("tsfm_public",),
            distributions={"granite-tsfm": "0.3.11"},
            proofs=("tsfm_public.models.tinytimemixer:TinyTimeMixerForPrediction",),
            needs=("datasets", "deprecated"),
        ),
    )
}


def require(name: str, module: str | None = None) -> ModuleType:
    """Import an optional library by the name of its extra, and return its top-level module, or another.

    Raises:
        MissingExtraError: it is not installed, or not completely; the message gives the commands that install it.
        UnknownNameError: no extra has this name.
    """
    if name not in EXTRAS:
        raise unknown_name("extra", name, EXTRAS)
    extra = EXTRAS[name]
    try:
        if extra.before is not None:
            extra.before()
        for proof in extra.proofs:
            home, _, attribute = proof.partition(":")
            # another library's wheel leaves empty folders of this name, which import as empty packages
            if not hasattr(import_module(home), attribute):
                raise ImportError(f"{home} has no {attribute}")
        return import_module(module or extra.imports[0])
    except ImportError as error:
        commands = " && ".join(extra.install)
        raise MissingExtraError(
            f"{extra.title} needs a library that is not installed here, or not completely ({error}). "
            f"Install it: {commands}. `tsfm-lens doctor` shows what is there."
        ) from error


def status() -> dict[str, ExtraStatus]:
    """Return the status of every extra, by name; none is imported."""
    table = {}
    for name, extra in EXTRAS.items():
        versions = {package: installed(package) for package in extra.distributions}
        missing = [package for package, version in versions.items() if version is None]
        missing += [package for package in extra.needs if installed(package) is None]
        missing += [module for module in extra.imports if not _has_code(module)]
        table[name] = ExtraStatus(extra, versions, tuple(dict.fromkeys(missing)))
    return table


def require_packages(extra: str, purpose: str) -> None:
    """Refuse a purpose, before any work, while a package of an extra is not installed.

    Raises:
        MissingExtraError: the message names the packages and the command that installs them.
    """
    missing = missing_packages(extra)
    if missing:
        raise missing_extra(purpose, extra, missing)


def missing_packages(extra: str) -> list[str]:
    """List the packages of an extra, as the package's own metadata has them, that are not installed."""
    return [
        package
        for package in packages_of_extras().get(extra, ())
        if installed(package) is None
    ]


def packages_of_extras() -> dict[str, list[str]]:
    """Return the packages that each extra adds, by its name; none where this package itself is not installed."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    table: dict[str, list[str]] = {}
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if (
            marker is None
            or marker.evaluate({"extra": ""})
            or requirement.name == DISTRIBUTION
        ):
            continue
        for name in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
            if marker.evaluate({"extra": name}):
                table.setdefault(name, []).append(requirement.name)
    return table


def installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _has_code(module: str) -> bool:
    """Return whether a top-level module is there and more than an empty folder."""
    try:
        spec = find_spec(module)
    except ValueError:
        # imported already, by something that gave it no spec
        return True
    return spec is not None and spec.origin is not None
