"""The reference of every public name, by package and theme, and where references in
docstrings lead.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any

from sitepages.drawing import CACHE, slugs
from sitepages.writing import from_docstring, plain, table, write
from tsfm_lens.core.registry import THEMES, Figure, measurements

PACKAGES = (
    "core.errors",
    "core.ranks",
    "data",
    "hooks",
    "models",
    "ablation",
    "probes",
    "explain",
    "viz",
    "report",
    "report.pipeline",
    "report.explanation",
    "report.explore",
    "report.serve",
    "sweep",
    "compress",
    "training",
    "zoo",
    "zoo.planted",
    "testing",
    "studies.dictionaries",
    "studies.experiments",
    "studies.queue",
    "studies.experiments.figures",
    "studies.rank_theory",
    "studies.rank_theory.figures",
    "studies.rank_theory.figures_models",
    "studies.recipes",
    "studies.recipes.figures",
    "studies.samformer",
    "studies.structured",
)
FOLDER = "reference/generated"
LINES = 220  # of docstrings on one page, which keeps it below 10,000 pixels


def name_page(package: str) -> str:
    """Name of a package's page in docs/reference/generated; "" is the top of the
    package.
    """
    if package:
        return f"api-{package.replace('.', '-')}"
    return "api-tsfm_lens"


def public_names(package: str) -> list[str]:
    """What a package offers, as its ``__all__`` has it."""
    module = find_module(package)
    if package == "core.errors":
        return [
            name
            for name, thing in vars(module).items()
            if inspect.isclass(thing) and issubclass(thing, Exception)
        ]
    return [name for name in module.__all__ if name != "__version__"]


def find_module(package: str) -> Any:
    """The module of a package."""
    return import_module(f"tsfm_lens.{package}" if package else "tsfm_lens")


@cache
def homes() -> dict[int, str]:
    """The name under which each object is documented, by its id: that of the first
    package which offers it.
    """
    found: dict[int, str] = {}
    for package in (*PACKAGES, ""):
        for name in public_names(package):
            thing = getattr(find_module(package), name)
            if inspect.ismodule(thing):
                continue
            found.setdefault(id(thing), f"{find_module(package).__name__}.{name}")
    return found


def write_api() -> None:
    """The pages of each package, and one that lists the packages."""
    visible = [package for package in ("", *PACKAGES) if package != "core.errors"]
    for package in visible:
        for name, text in pages(package).items():
            write(f"{FOLDER}/{name}.md", text)
    rows = [
        (
            f"[`{find_module(package).__name__}`]({name_page(package)}.md)",
            str(len(public_names(package))),
            _first(find_module(package)),
        )
        for package in visible
    ]
    listed = "\n".join(map(name_page, visible))
    write(
        f"{FOLDER}/api.md",
        "# API reference: Python\n\nEvery public name, with an example that the tests"
        " run. Functions that draw a measurement stand beside their figure in the"
        " [gallery](../../gallery/index.md).\n\n"
        + table(("package", "names", "what it holds"), rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n",
    )


def pages(package: str) -> dict[str, str]:
    """The pages of a package by their names: one with all entries, or a list of names
    and a page per theme.
    """
    module = find_module(package)
    home = name_page(package)
    title = module.__name__
    parts = [
        f"# {title}",
        f"```{{eval-rst}}\n.. py:module:: {title}\n```",
        *(
            from_docstring(part)
            for part in (inspect.getdoc(module) or "").split("\n\n")
        ),
    ]
    pictured = pictured_names() if package == "viz" else {}
    if pictured:
        rows = [_row(module, name) for name in pictured]
        parts += ["## Figures of measurements", table(("name", "what it is"), rows)]
    groups = _groups(package)
    made: dict[str, str] = {}
    listing: list[str] = []
    for label, names in groups.items():
        rows = [_row(module, name) for name in names]
        listed = table(("name", "what it is"), rows)
        entries = [_entry(module, name) for name in names]
        if len(groups) == 1:
            parts += [listed, *entries]
            continue
        # an address that outlives a file more or less
        name = f"{home}-{re.sub(r'[^a-z0-9]+', '-', label.partition(',')[0].lower())}"
        made[name] = (
            "\n\n".join(
                [
                    f"# {title}: {label}",
                    f"Part of {{py:mod}}`{title}`.",
                    listed,
                    *entries,
                ]
            )
            + "\n"
        )
        parts += [f"## [{label}]({name}.md)", listed]
        listing.append(f"{label} <{name}>")
    if made:
        parts.append("```{toctree}\n:hidden:\n\n" + "\n".join(listing) + "\n```")
    return {home: "\n\n".join(parts) + "\n", **made}


def _groups(package: str) -> dict[str, list[str]]:
    """Names by the page on which they stand, as short as LINES says: by theme of the
    registry, then by file.
    """
    module = find_module(package)
    pictured = pictured_names() if package == "viz" else {}
    names = [name for name in public_names(package) if name not in pictured]

    def length(some: list[str]) -> int:
        return sum(
            estimate_length(getattr(module, name))
            for name in some
            if _entry(module, name)
        )

    if length(names) <= LINES:
        return {"": names}
    if package in ("probes", "viz"):
        themes = _themes()
    else:
        themes = {}
    ranked = sorted(
        names, key=lambda name: (themes.get(name, len(THEMES)), _file(module, name))
    )
    groups: dict[str, list[str]] = {}
    for theme, same in groupby(ranked, key=lambda name: themes.get(name, len(THEMES))):
        word = ""
        if themes:
            word = f"{[*THEMES, 'Others'][theme]}: "
        page: list[str] = []
        for _, of_file in groupby(list(same), key=lambda name: _file(module, name)):
            more = list(of_file)
            if page and length([*page, *more]) > LINES:
                groups[_label(word, module, page)] = page
                page = []
            page = [*page, *more]
        groups[_label(word, module, page)] = page
    return groups


def _label(word: str, module: Any, names: list[str]) -> str:
    """The theme of a page, if any, and the files that it covers."""
    return word + ", ".join(
        dict.fromkeys(_file(module, name).replace("_", " ") for name in names)
    )


def _themes() -> dict[str, int]:
    """Place of the theme of each probe and figure, by the last word of its name."""
    found: dict[str, int] = {}
    for measurement in measurements().values():
        functions = [figure.function for figure in measurement.figures]
        if measurement.function is not None:
            functions.insert(0, measurement.function)
        for function in functions:
            found.setdefault(function.__name__, THEMES.index(measurement.theme))
    return found


def _file(module: Any, name: str) -> str:
    """The file in which a name is defined, without its ending."""
    return (
        str(getattr(getattr(module, name), "__module__", module.__name__))
        .rpartition(".")[2]
        .strip("_")
    )


def estimate_length(thing: Any) -> int:
    """Length of an entry, of some 35 pixels a line: its docstring, and those of a
    class's members.
    """
    if inspect.isclass(thing):
        members = [var for name, var in vars(thing).items() if name[0] != "_"]
    else:
        members = []
    if inspect.isclass(thing) or inspect.isroutine(thing):
        documented = [thing, *members]
    else:
        documented = []
    reported = [
        item for item in documented if callable(item) or isinstance(item, property)
    ]
    return 2 + sum(
        2 + len((inspect.getdoc(item) or "").splitlines()) for item in reported
    )


def _row(module: Any, name: str) -> tuple[str, str]:
    thing = getattr(module, name)
    if inspect.ismodule(thing):
        return f"{{py:mod}}`{thing.__name__}`", _first(thing)
    return f"{{py:obj}}`{name} <{homes()[id(thing)]}>`", _first(thing)


def _entry(module: Any, name: str) -> str:
    """The entry of a name; "" if another package has it."""
    thing = getattr(module, name)
    full = f"{module.__name__}.{name}"
    if inspect.ismodule(thing) or homes()[id(thing)] != full:
        return ""
    entry = f"```{{eval-rst}}\n.. {_directive(thing)}:: {full}{_inherited(thing)}\n```"
    cards = [_card(slug, figure) for slug, figure in figures_of(full).items()]
    if cards:
        entry += (
            "\n\n::::{grid} 2 2 3 3\n:gutter: 2\n\n" + "\n\n".join(cards) + "\n\n::::"
        )
    return entry


def pictured_names() -> dict[str, None]:
    """Functions of viz whose entry stands beside their figure in the gallery."""
    return {
        figure.name: None
        for measurement in measurements().values()
        for figure in measurement.figures
        if not figure.variable
        and figure.name in public_names("viz")
        and homes()[id(figure.function)] == f"tsfm_lens.viz.{figure.name}"
    }


def entry_of_figure(name: str) -> str:
    """The entry of a function of viz, for its page in the gallery."""
    return _entry(find_module("viz"), name)


def figures_of(full: str) -> dict[str, Figure]:
    """Figures of the result of a probe, a full name, by the name of their files."""
    return {
        slug: figure
        for slug, (measurement, figure) in slugs().items()
        if full.endswith(f".{measurement.function_name}")
    }


def _card(slug: str, figure: Figure) -> str:
    """A link to a figure in the gallery, with its picture if that was drawn."""
    picture = CACHE / "static" / "figures" / f"{slug}.png"
    shown = ""
    if picture.exists():
        shown = f":img-top: /_cache/static/figures/{slug}.png\n:img-alt: {slug}\n"
    return (
        f":::{{grid-item-card}} {plain(figure.title.rstrip('.'))}\n{shown}:link:"
        f" figure-{slug}\n:link-type: ref\n:class-img-top: tsfm-thumbnail\n:::"
    )


def _directive(thing: Any) -> str:
    if inspect.isclass(thing):
        if issubclass(thing, BaseException):
            return "autoexception"
        return "autoclass"
    if callable(thing) and hasattr(thing, "__name__"):
        return "autofunction"
    return "autodata"


def _inherited(thing: Any) -> str:
    """The option with which a class shows what it has of bases of ours that have no
    entry of their own.
    """
    if inspect.isclass(thing):
        bases = thing.__mro__[1:]
    else:
        bases = ()
    own = [
        base
        for base in bases
        if base.__module__.startswith("tsfm_lens") and id(base) not in homes()
    ]
    foreign = [
        base.__name__ for base in bases if not base.__module__.startswith("tsfm_lens")
    ]
    if own:
        return f"\n   :inherited-members: {', '.join(foreign)}"
    return ""


def _first(thing: Any) -> str:
    """First paragraph of a docstring of a function, class or module; "" for a value."""
    if not (
        inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)
    ):
        return ""
    return from_docstring((inspect.getdoc(thing) or "").split("\n\n")[0])
