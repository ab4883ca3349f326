"""The reference of every public name, a page per package, and where references in docstrings lead."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

from sitepages.writing import from_docstring, table, write

PACKAGES = (
    "data",
    "hooks",
    "models",
    "ablation",
    "probes",
    "explain",
    "explore",
    "viz",
    "report",
    "report.pipeline",
    "report.explanation",
    "serve",
    "sweep",
    "compress",
    "training",
    "ranks",
    "zoo",
    "zoo.planted",
    "testing",
    "errors",
    "studies.experiments",
    "studies.method_scores.leaderboard",
    "studies.experiments.figures",
    "studies.rank_theory",
    "studies.rank_theory.figures",
    "studies.rank_theory.figures_models",
    "studies.recipes",
    "studies.recipes.figures",
    "studies.samformer",
    "studies.structured",
    "studies.structured.figures",
)
FOLDER = "reference/generated"


def page_of(package: str) -> str:
    """Name of a package's page in docs/reference/generated; "" is the top of the package."""
    return f"api-{package.replace('.', '-')}" if package else "api-tsfm_lens"


def public_names(package: str) -> list[str]:
    """What a package offers, as its ``__all__`` has it."""
    module = module_of(package)
    if package == "errors":
        return [name for name, thing in vars(module).items() if inspect.isclass(thing) and issubclass(thing, Exception)]
    return [name for name in module.__all__ if name != "__version__"]


def module_of(package: str) -> Any:
    """The module of a package."""
    return import_module(f"tsfm_lens.{package}" if package else "tsfm_lens")


@cache
def homes() -> dict[int, str]:
    """The name under which each object is documented, by its id: that of the first package which offers it."""
    found: dict[int, str] = {}
    for package in (*PACKAGES, ""):
        for name in public_names(package):
            thing = getattr(module_of(package), name)
            if inspect.ismodule(thing):
                continue
            found.setdefault(id(thing), f"{module_of(package).__name__}.{name}")
    return found


def write_api() -> None:
    """A page per package, and one that lists them."""
    shown = [package for package in ("", *PACKAGES) if package != "errors"]
    for package in shown:
        write(f"{FOLDER}/{page_of(package)}.md", page(package))
    rows = [
        (
            f"[`{module_of(package).__name__}`]({page_of(package)}.md)",
            str(len(public_names(package))),
            _first(module_of(package)),
        )
        for package in shown
    ]
    listed = "\n".join(map(page_of, shown))
    write(
        f"{FOLDER}/api.md",
        "# Python\n\nEvery public name, with the example that the tests run.\n\n"
        + table(("package", "names", "what it holds"), rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n",
    )


def page(package: str) -> str:
    """The page of a package."""
    module, names = module_of(package), public_names(package)
    title = module.__name__
    rows, entries = [], []
    for name in names:
        thing = getattr(module, name)
        full = f"{title}.{name}"
        if inspect.ismodule(thing):
            rows.append((f"{{py:mod}}`{thing.__name__}`", _first(thing)))
            continue
        home = homes()[id(thing)]
        rows.append((f"{{py:obj}}`{name} <{home}>`", _first(thing)))
        if home == full:
            entries.append(f"```{{eval-rst}}\n.. {_directive(thing)}:: {full}{_inherited(thing)}\n```")
    parts = [
        f"# {title}",
        f"```{{eval-rst}}\n.. py:module:: {title}\n```",
        *(from_docstring(part) for part in (inspect.getdoc(module) or "").split("\n\n")),
        table(("name", "what it is"), rows),
        *entries,
    ]
    return "\n\n".join(parts) + "\n"


def _directive(thing: Any) -> str:
    if inspect.isclass(thing):
        return "autoexception" if issubclass(thing, BaseException) else "autoclass"
    return "autofunction" if callable(thing) and hasattr(thing, "__name__") else "autodata"


def _inherited(thing: Any) -> str:
    """The option with which a class shows what it has of bases of ours that have no entry of their own."""
    bases = thing.__mro__[1:] if inspect.isclass(thing) else ()
    own = [base for base in bases if base.__module__.startswith("tsfm_lens") and id(base) not in homes()]
    foreign = [base.__name__ for base in bases if not base.__module__.startswith("tsfm_lens")]
    return f"\n   :inherited-members: {', '.join(foreign)}" if own else ""


def _first(thing: Any) -> str:
    """First paragraph of the docstring of a function, class or module; "" for a value."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)):
        return ""
    return from_docstring((inspect.getdoc(thing) or "").split("\n\n")[0])
