"""Optional model libraries: whether they are installed, and how to install them.

Read :class:`Extra` first, which the wiring that needs a library declares. Nothing is
imported until :meth:`Extra.require`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType

from packaging.requirements import Requirement

from tsfm_lens.core.errors import (
    DISTRIBUTION,
    MissingExtraError,
    install_command,
    missing_extra,
)


@dataclass(frozen=True)
class Extra:
    """Optional model library, which the wiring that needs it declares.

    Attributes:
        name: of the extra in ``pyproject.toml``.
        title: of the model.
        imports: top-level modules, the library's own first.
        distributions: tested version of each package of the library.
        proofs: "module:name" of what only the real library holds.
        needs: further packages that it imports.
        alone: whether pip installs the library without its dependencies, beside the
            extra.
        before: called before it is imported.
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
        extra = install_command(self.name)
        if not self.alone:
            return (extra,)
        # these libraries ask for old versions of torch or jaxtyping, or for tools that
        # they never import; what they do import is in the extra
        pins = " ".join(
            f"{name}=={version}" for name, version in self.distributions.items()
        )
        return extra, f"pip install --no-deps {pins}"

    @property
    def versions(self) -> dict[str, str | None]:
        """Installed version of each package of the library, None of missing ones."""
        return {package: installed(package) for package in self.distributions}

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages and modules that the library needs and that are not there.

        Nothing is imported to find out.
        """
        packages = (*self.distributions, *self.needs)
        names = [package for package in packages if installed(package) is None]
        names += [module for module in self.imports if not _has_code(module)]
        return tuple(dict.fromkeys(names))

    @property
    def importable(self) -> bool:
        """True if everything it needs is there; only :meth:`require` proves it."""
        return not self.missing

    def require(self, module: str | None = None) -> ModuleType:
        """Import its top-level module, or another one.

        Returns:
            The module.

        Raises:
            MissingExtraError: it is not installed, or not completely; the message gives
                the commands that install it.
        """
        try:
            if self.before is not None:
                self.before()
            for proof in self.proofs:
                proof_module, _, attribute = proof.partition(":")
                # another library's wheel leaves empty folders of this name, which
                # import as empty packages
                if not hasattr(import_module(proof_module), attribute):
                    raise ImportError(f"{proof_module} has no {attribute}")
            return import_module(module or self.imports[0])
        except ImportError as error:
            commands = " && ".join(self.install)
            raise MissingExtraError(
                f"{self.title} needs a library that is not installed here, or not"
                f" completely ({error}). Install it: {commands}. `tsfm-lens doctor`"
                " shows what is there."
            ) from error


def require_packages(extra: str, purpose: str) -> None:
    """Refuse a purpose, before any work, while a package of an extra is not installed.

    Raises:
        MissingExtraError: the message names the packages and the command that installs
            them.
    """
    missing = missing_packages(extra)
    if missing:
        raise missing_extra(purpose, extra, missing)


def missing_packages(extra: str) -> list[str]:
    """List the packages of an extra that are not installed.

    The packages are those that this package's own metadata declares.

    Returns:
        Names of packages.
    """
    return [
        package
        for package in packages_of_extras().get(extra, ())
        if installed(package) is None
    ]


def packages_of_extras() -> dict[str, list[str]]:
    """Return the packages that each extra adds, by its name.

    There are none where this package itself is not installed.
    """
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    # read once: the file is parsed anew at each call
    extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ()
    table: dict[str, list[str]] = {}
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        # what holds without an extra is needed by all, and a requirement of this
        # package itself only joins extras
        if (
            marker is None
            or marker.evaluate({"extra": ""})
            or requirement.name == DISTRIBUTION
        ):
            continue
        for name in extras:
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
    # an empty folder is a namespace package, which has no file of its own
    return spec is not None and spec.origin is not None
