"""Optional model libraries: their needs, installation and presence, without importing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tsfm_lens.errors import MissingExtraError, unknown_name


@dataclass(frozen=True)
class Extra:
    """One optional model library.

    Attributes:
        name: of the extra, as in ``pip install "tsfm-lens-toolbox[NAME]"``.
        title: the models, as their authors call them.
        imports: top-level modules.
        distributions: package -> the version that the wirings were tested with.
        proofs: "module:attribute" that only the real library has.
        needs: packages that the library imports and that tsfm-lens itself does not need.
        alone: install the library without the packages it asks for; the extra holds those it runs with.
        before: called before its first import.
    """

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
        extra = f'pip install "tsfm-lens-toolbox[{self.name}]"'
        if not self.alone:
            return (extra,)
        pins = " ".join(f"{name}=={version}" for name, version in self.distributions.items())
        return extra, f"pip install --no-deps {pins}"


@dataclass(frozen=True)
class ExtraStatus:
    """Installed parts of one extra.

    Attributes:
        extra: the library.
        versions: package -> installed version, or None.
        missing: packages and modules that are not there; a module may be, as an empty folder that another left.
    """

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
        jaxtyping.PyTree = _PyTree


class _PyTree:
    """Any nested structure; subscripts name its leaves."""

    def __class_getitem__(cls, _item: object) -> type[_PyTree]:
        return cls


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
            distributions={"timecopilot-toto-2": "0.1.1", "timecopilot-dd-unit-scaling": "0.1.0"},
            proofs=("dd_unit_scaling:LinearReadout", "toto2:Toto2Model"),
            needs=("lightning", "unit-scaling"),
        ),
        Extra(
            name="moirai",
            title="Moirai",
            imports=("uni2ts",),
            distributions={"timecopilot-uni2ts": "0.1.3"},
            proofs=("uni2ts.model.moirai:MoiraiModule", "uni2ts.model.moirai2:Moirai2Module"),
            needs=("lightning", "hydra-core"),
            before=_stand_in_for_pytree,
        ),
    )
}


def require(name: str, module: str | None = None) -> ModuleType:
    """Import an optional library; the first time can take some seconds.

    Args:
        name: of the extra.
        module: what to return, as in "uni2ts.model.moirai"; the library's top-level module if None.

    Raises:
        MissingExtraError: it is not installed, or not wholly; the message gives the commands that install it.
        UnknownNameError: no extra has this name.
    """
    extra = _extra(name)
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
            f"{extra.title} needs a library that is not installed here, or not wholly ({error}). "
            f"Install it: {commands}. `tsfm-lens doctor` shows what is there."
        ) from error


def status() -> dict[str, ExtraStatus]:
    """Return the status of every extra, by name; none is imported."""
    return {name: _status(extra) for name, extra in EXTRAS.items()}


def _extra(name: str) -> Extra:
    if name not in EXTRAS:
        raise unknown_name("extra", name, EXTRAS)
    return EXTRAS[name]


def _status(extra: Extra) -> ExtraStatus:
    versions = {package: installed(package) for package in extra.distributions}
    missing = [package for package, version in versions.items() if version is None]
    missing += [package for package in extra.needs if installed(package) is None]
    missing += [module for module in extra.imports if not _has_code(module)]
    return ExtraStatus(extra, versions, tuple(dict.fromkeys(missing)))


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
