"""The gallery: a page per measurement with its figures, a page per theme, and
thumbnails of all.
"""

from __future__ import annotations

import inspect
import json
import re
from html import escape

from plotly.offline import get_plotlyjs

from sitepages.api import entry_of_figure, pictured_names
from sitepages.drawing import CACHE, Drawn, Studio, slugs
from sitepages.pictures import static_pictures
from sitepages.scenes import (
    CHRONOS,
    PAIRED,
    Scene,
    described,
    find_function,
    find_scene,
    of_core,
    scene_of_pair,
)
from sitepages.writing import (
    DOCS,
    code,
    from_docstring,
    plain,
    table,
    write,
    write_bytes,
)
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import THEMES, Figure, Measurement, measurements
from tsfm_lens.models.architecture import models_meeting
from tsfm_lens.viz.saving import BROWSER_CONFIG

STATIC = CACHE / "static"
PAIRS = "side-by-side"  # the page of figures of two models
Entries = dict[str, tuple[Measurement, Figure]]


def name_page(measurement: Measurement) -> str:
    """Name of a measurement's page in docs/gallery."""
    return measurement.kind


_FIRST = ("Activations", "Inputs", "Causes")  # what most people come for
STRONGEST = (
    *("attention_map", "lens_logit_map", "input_timeline"),
    *("ablation_forecasts", "patching_map", "ablation_heatmap"),
)
"""Figures that are understood at a glance; they open the gallery and their themes."""


_WIDE = "---\nhide-toc: true\n---\n\n"  # the page has the place of its contents, too


def theme_page(theme: str) -> str:
    """Name of a theme's page in docs/gallery."""
    return "theme-" + theme.lower().replace(" ", "-")


def pages() -> set[str]:
    """Every page of the gallery that is written."""
    themes = {measurement.theme for measurement in measurements().values()}
    return {
        "index",
        PAIRS,
        *map(theme_page, themes),
        *map(name_page, measurements().values()),
    }


def write_gallery() -> None:
    """Draw every figure and write all pages."""
    entries = slugs()
    studio = Studio()
    drawn = {slug: studio.draw(*entry) for slug, entry in entries.items()}
    pairs = {f"{name}-beside": entries[name] for name in PAIRED}
    drawn |= {slug: studio.draw_pair(*entry) for slug, entry in pairs.items()}
    pictures = static_pictures(
        {slug: element.spec for slug, element in drawn.items()}, CACHE / "pictures"
    )
    write_plotly()
    for slug, item in drawn.items():
        write_figure(slug, item.spec, pictures.get(slug))
    for measurement in measurements().values():
        own = {
            slug: figure
            for slug, (other, figure) in entries.items()
            if other.kind == measurement.kind
        }
        write(
            f"gallery/{name_page(measurement)}.md",
            _page(measurement, own, drawn, set(pictures)),
        )
    present = [
        theme
        for theme in (*_FIRST, *(theme for theme in THEMES if theme not in _FIRST))
        if any(element.theme == theme for element in measurements().values())
    ]
    for theme in present:
        write(
            f"gallery/{theme_page(theme)}.md",
            _theme(theme, entries, drawn, set(pictures)),
        )
    write(f"gallery/{PAIRS}.md", _paired(pairs, drawn, set(pictures)))
    write("gallery/index.md", _index(present, entries, drawn, set(pictures)))


def write_plotly() -> None:
    """One plotly.js for all figures of the site, and what turns them dark."""
    write_bytes(STATIC / "figures" / "plotly.min.js", get_plotlyjs().encode())
    write_bytes(
        STATIC / "figures" / "dark.js",
        (DOCS.parent / "tsfm_lens" / "viz" / "dark.js").read_bytes(),
    )


def write_figure(slug: str, spec: str, picture: bytes | None) -> None:
    """The files of a figure: a script, since a page that is opened from a folder may
    load no JSON, and a picture.
    """
    parsed = json.loads(spec)
    visible = json.dumps({**parsed, "config": BROWSER_CONFIG}).replace("</", "<\\/")
    text = (
        "window.tsfmFigures = window.tsfmFigures || {};"
        f" window.tsfmFigures[{json.dumps(slug)}] = {visible};\n"
    )
    write_bytes(STATIC / "figures" / f"{slug}.js", text.encode())
    if picture is not None:
        write_bytes(STATIC / "figures" / f"{slug}.png", picture)


def figure_html(
    slug: str, title: str, height: int, min_width: int, root: str, pictured: bool
) -> str:
    """An interactive figure, with its picture until it is drawn and where there is no
    script.

    Args:
        root: path from the page to the folder _static.
    """
    if pictured:
        picture = (
            f'<img src="{root}_static/figures/{slug}.png" alt="{escape(title)}"'
            ' loading="lazy">'
        )
    else:
        picture = f"<span>{escape(title)}</span>"
    style = f"min-width:{min_width}px;height:{height}px"
    figure = (
        f'<div class="tsfm-figure" data-figure="{slug}" style="{style}">{picture}</div>'
    )
    return f'<div class="tsfm-scroll">{figure}</div>'


def _page(
    measurement: Measurement,
    own: dict[str, Figure],
    drawn: dict[str, Drawn],
    pictures: set[str],
) -> str:
    probe = measurement.function_name
    metadata = [
        f"**Kind** `{measurement.kind}`",
        f"**Probe** {{py:func}}`~tsfm_lens.{find_package(probe)}`" if probe else "",
        f"**Computed by** {plain(described(measurement.kind))}",
        f"**Source** {plain(measurement.source)}" if measurement.source else "",
        (
            "**Reported values**"
            f" {', '.join(f'`{item}`' for item in measurement.paper)}"
            if measurement.paper
            else ""
        ),
        (
            f"**Models** {plain(models_meeting(NEEDS[measurement.needs]))}"
            if measurement.needs
            else ""
        ),
    ]
    parts = [
        f"# {plain(measurement.title)}",
        plain(measurement.summary[:1].upper() + measurement.summary[1:]) + ".",
        plain(measurement.description),
        *(entry for entry in ["  \n".join(fact for fact in metadata if fact)] if entry),
    ]
    visible: set[str] = set()
    for slug, figure in own.items():
        scene = find_scene(measurement, figure)
        parts.append(
            _section(
                slug,
                figure,
                scene,
                drawn[slug],
                slug in pictures,
                scene.opening in visible,
            )
        )
        visible.add(scene.opening)
    parts += _result(measurement, [drawn[slug] for slug in own])
    readings = list(
        dict.fromkeys(text for slug in own for text in drawn[slug].readings)
    )
    if readings:
        parts += [
            "## What the report says",
            "\n".join(f"- {plain(text)}" for text in readings),
        ]
    return "\n\n".join(parts) + "\n"


def _result(measurement: Measurement, drawn: list[Drawn]) -> list[str]:
    """The table of the result that the figures of a measurement are drawn of."""
    rows = next((item.result for item in drawn if item.result), [])
    if not rows:
        return []
    of = "The dataset has these variables"
    if measurement.theme == "Sweeps":
        of = "The table has these columns"
    shown = [
        (f"`{name}`", ", ".join(re.findall(r"\w+", axes)), plain(unit))
        for name, axes, unit in rows
    ]
    return ["## The result", f"{of}:", table(("name", "axes", "unit"), shown)]


def find_package(name: str) -> str:
    """Where a probe is, below the package: a function of probes, unless another package
    is named.
    """
    if "." in name:
        return name
    return f"probes.{name}"


def _section(
    slug: str,
    figure: Figure,
    scene: Scene,
    drawn: Drawn,
    pictured: bool,
    opened: bool = False,
) -> str:
    """One figure: the figure, its caption, how to read it, and the code that drew it.

    Args:
        opened: the page has shown what the code stands on.
    """
    if opened:
        opening = "# after the lines above\n"
    else:
        opening = scene.opening.rstrip() + "\n\n"
    parts = [
        f"(figure-{slug})=\n## {plain(figure.title.rstrip('.'))}",
        f"**{plain(drawn.title)}**"
        + (f"  \n{plain(drawn.subtitle)}" if drawn.subtitle else ""),
        figure_html(slug, drawn.title, drawn.height, drawn.min_width, "../", pictured),
        code(opening + scene.drawing),
        *_function(slug, figure, drawn.spec),
    ]
    if scene.command:
        parts += ["On the command line:", code(scene.command, "console")]
    if drawn.caption:
        parts += [
            "::::{dropdown} Caption, with every parameter",
            code(drawn.caption, "text"),
            "::::",
        ]
    return "\n\n".join(parts)


def _function(slug: str, figure: Figure, spec: str) -> list[str]:
    """How to read a figure, and the entry of its function or a link to it.

    An entry stands once, with the first figure that the function draws.
    """
    if slug not in pictured_names():
        reading = f"**How to read it.** {_reading(figure, spec)}"
        return [reading, f"Function: {{py:func}}`{_home(figure)}`"]
    marks = " ".join(describe_marks(spec))
    reading = [f"**How to read it.** {marks}"] if marks else []
    return [*reading, entry_of_figure(slug)]


def _home(figure: Figure) -> str:
    """Where the reference has what draws a figure."""
    if of_core(figure):
        return f"tsfm_lens.viz.{find_function(figure)}"
    return f"{figure.function.__module__}.{figure.name}"


def _reading(figure: Figure, spec: str) -> str:
    """How to read a figure: what it shows, and what its axes, colours and lines are."""
    text = inspect.getdoc(figure.function) or ""
    opening = re.split(r"\n\n?(?=\w+:\n)", text)[0]
    shown = ""
    # docstrings of figures of a variable say nothing that axes do not
    if not figure.variable:
        shown = from_docstring(re.sub(r"^Draw ", "The figure shows ", opening))
    return " ".join(part for part in (shown, *describe_marks(spec)) if part)


_MOST_NAMES = 8  # of a legend that are told; more say what the legend says


def describe_marks(spec: str) -> list[str]:
    """What the axes, colours and lines of a figure are, a sentence each.

    Args:
        spec: the figure as plotly's JSON.
    """
    figure = json.loads(spec)
    layout = figure["layout"]
    found: dict[str, list[str]] = {
        "Horizontal axis": [],
        "Vertical axis": [],
        "Colour": [],
    }
    for name, part in layout.items():
        for start, kind in (
            ("xaxis", "Horizontal axis"),
            ("yaxis", "Vertical axis"),
            ("coloraxis", "Colour"),
        ):
            if name.startswith(start):
                bar = part.get("colorbar", part)
                found[kind].append((bar.get("title") or {}).get("text") or "")
    found["Lines and marks"] = [
        trace.get("name") or "" for trace in figure["data"] if trace.get("showlegend")
    ]
    sentences = []
    for kind, titles in found.items():
        told = dict.fromkeys(re.sub(r"\s*<[^>]*>\s*", " ", each) for each in titles)
        words = [each.strip() for each in told if each.strip()]
        if 0 < len(words) <= _MOST_NAMES:
            sentences.append(f"{kind}: {plain('; '.join(words))}.")
    return sentences


def _card(
    slug: str,
    measurement: Measurement,
    figure: Figure,
    drawn: Drawn,
    pictures: set[str],
) -> str:
    *_, call = find_scene(measurement, figure).drawing.splitlines()
    picture = ""
    if slug in pictures:
        picture = (
            f":img-top: /_cache/static/figures/{slug}.png\n:img-alt: {drawn.title}\n"
        )
    return (
        f":::{{grid-item-card}} {plain(figure.title.rstrip('.'))}\n{picture}:link:"
        f" figure-{slug}\n:link-type: ref\n"
        ":class-img-top:"
        f" tsfm-thumbnail\n\n`{call if find_function(figure) in call else figure.name}`\n:::"
    )


def order_entries(entries: Entries, drawn: dict[str, Drawn]) -> Entries:
    """The strongest figures first, and last those that found nothing in these models."""

    def place(slug: str) -> int:
        if slug in STRONGEST:
            return STRONGEST.index(slug)
        return len(STRONGEST) + found_nothing(drawn[slug])

    return {slug: entries[slug] for slug in sorted(entries, key=place)}


def found_nothing(drawn: Drawn) -> bool:
    """Whether a figure says first that nothing is there."""
    first = " ".join([drawn.title, *drawn.readings[:1]])
    return re.search(r"\b(0|none) of \d", first) is not None


def _grid(entries: Entries, drawn: dict[str, Drawn], pictures: set[str]) -> str:
    cards = [
        _card(slug, measurement, figure, drawn[slug], pictures)
        for slug, (measurement, figure) in order_entries(entries, drawn).items()
    ]
    opening = "::::{grid} 1 1 2 2\n:gutter: 3\n:class-container: tsfm-wide\n\n"
    return opening + "\n\n".join(cards) + "\n\n::::"


def _of_theme(theme: str, entries: Entries) -> Entries:
    return {slug: entry for slug, entry in entries.items() if entry[0].theme == theme}


def _theme(
    theme: str, entries: Entries, drawn: dict[str, Drawn], pictures: set[str]
) -> str:
    own = [
        measurement
        for measurement in measurements().values()
        if measurement.theme == theme
    ]
    listed = "\n".join(name_page(item) for item in own)
    cards = _grid(_of_theme(theme, entries), drawn, pictures)
    return f"{_WIDE}# {theme}\n\n{cards}\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def _paired(pairs: Entries, drawn: dict[str, Drawn], pictures: set[str]) -> str:
    parts = [
        "# Two models side by side",
        (
            "`tsfm-lens figure NAME MODEL MODEL` and {py:func}`tsfm_lens.viz.compare`"
            " draw any figure of a run for two models, with shared axes and colours."
            " They refuse figures whose colour bars have different titles."
        ),
    ]
    for slug, (measurement, figure) in pairs.items():
        parts.append(
            _section(
                slug,
                figure,
                scene_of_pair(measurement, figure),
                drawn[slug],
                slug in pictures,
            )
        )
    return "\n\n".join(parts) + "\n"


def _index(
    present: list[str], entries: Entries, drawn: dict[str, Drawn], pictures: set[str]
) -> str:
    count = len({figure.name for _, figure in entries.values()})
    strongest = {slug: entries[slug] for slug in STRONGEST}
    others = {slug: entries[slug] for slug in entries if slug not in STRONGEST}
    parts = [
        f"{_WIDE}# Gallery",
        (
            f"All {count} figures, drawn from the embedded models when this site was"
            " built. Click one for the interactive figure, its whole code, the"
            " reference of its function, the result behind it, and what the report"
            " says. Most of this code needs these lines first:"
        ),
        code(CHRONOS),
        "## A first look",
        _grid(strongest, drawn, pictures),
    ]
    for theme in present:
        parts += [
            f"## [{theme}]({theme_page(theme)}.md)",
            _grid(_of_theme(theme, others), drawn, pictures),
        ]
    parts.append(f"Some figures also show [two models side by side]({PAIRS}.md).")
    listed = "\n".join([*map(theme_page, present), PAIRS])
    return "\n\n".join(parts) + f"\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
