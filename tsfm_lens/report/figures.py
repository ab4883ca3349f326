"""Figures by name, for any run: computed, drawn, captioned and written, all files or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens import viz
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.needs import NEEDS, Needs
from tsfm_lens.core.registry import (
    Figure,
    FigurePanel,
    figures,
    find,
    find_figure,
)
from tsfm_lens.core.results import Results
from tsfm_lens.models.architecture import Architecture
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.viz.saving import FORMATS, rendered, write_together

STATIC = ("svg", "pdf", "png")
DOTS = 6.25  # dots per pixel of a png for print: 600 per inch


def takes_models(entry: Figure) -> bool:
    """Test if a figure is of several models, any number of them."""
    return bool(entry.kind) and find(entry.kind).takes == "lenses"


def computed_words(entry: Figure) -> str:
    """Describe what is computed for a figure, and on what."""
    if not entry.kind:
        return entry.computes
    return "; ".join(find(kind).computes for kind in (entry.kind, *entry.beside))


def requirements(entry: Figure) -> list[Needs]:
    """Return what a figure and its measurement need of a model."""
    names = [entry.needs]
    if entry.kind:
        names.insert(0, find(entry.kind).needs)
    return [NEEDS[name] for name in names if name]


def check_figure(entry: Figure, lens: Lens) -> None:
    """Refuse a model that the figure's definition does not allow."""
    for needs in requirements(entry):
        needs.check(lens, f"figure {entry.name}", _instead(entry))


def check_architecture(entry: Figure, architecture: Architecture, model: str) -> None:
    """Refuse a model that is not open yet by its architecture; see :func:`check_figure`."""
    for needs in requirements(entry):
        label = f"figure {entry.name}"
        needs.check_architecture(architecture, model, label, _instead(entry))


def _instead(entry: Figure) -> str:
    if not entry.instead:
        return ""
    return f"figure {entry.instead!r} shows what its layers hold"


def _panels(entry: Figure, run: Run) -> list[FigurePanel]:
    """Draw the panels of a figure of one run."""
    if takes_models(entry):
        return _panels_of_models(entry, [run.lens])
    shown = run if run.explicit_horizon else run.within_pass()
    if not entry.kind:
        return list(entry.function(shown))
    cache = Results(shown, {entry.kind: entry.probe_options})
    results = tuple(cache[kind] for kind in (entry.kind, *entry.beside))
    return [FigurePanel(entry.draw(*results), results=results)]


def _panels_of_models(entry: Figure, lenses: Sequence[Lens]) -> list[FigurePanel]:
    function: Any = find(entry.kind).function
    result = function(lenses)
    return [FigurePanel(entry.draw(result), results=(result,))]


@dataclass(frozen=True)
class DrawnFigure:
    """Figure that was computed."""

    entry: Figure
    panels: tuple[FigurePanel, ...]
    run: Run
    others: tuple[Lens, ...] = ()

    def caption(self, sources: Sequence[str] = ()) -> str:
        """Write title, content, all parameters and provenance; ``sources`` is where the series come from."""
        lines = [f"Figure {self.entry.name}. {self.entry.title}", ""]
        for panel in self.panels:
            lines += [_words(panel, self.run.batch.ids), ""]
        lines += ["Computed by: " + computed_words(self.entry) + "."]
        if self.entry.paper:
            lines += ["In the tsfm-lens paper: " + self.entry.paper + "."]
        results = [result for panel in self.panels for result in panel.results]
        lines += [line for result in results for line in _tests(result)][:1]
        lines += ["", "Parameters", *_parameters(results)]
        recipes = [line for result in results for line in _recipes(result)]
        if recipes:
            lines += ["", "Ablated", *dict.fromkeys(recipes)]
        definitions = dict.fromkeys(
            f"  {ds.attrs['source']}" for ds in results if ds.attrs.get("source")
        )
        lines += ["", "Definitions", *definitions]
        facts = [lens.provenance() for lens in (self.run.lens, *self.others)]
        origins = [
            f"  {key}: {each[key]}."
            for each in facts
            for key in _PROVENANCE
            if each.get(key)
        ]
        lines += ["", "Provenance", *origins]
        lines += [f"  seed: {self.run.seed}."]
        lines += ["", "Data", *_data(self.run, sources)]
        wrapped = [
            fill(line, _WIDTH, subsequent_indent="    " if line[:1] == " " else "")
            for line in lines
        ]
        return "\n".join(wrapped) + "\n"


def _tests(result: Any) -> list[str]:
    """State the test of significance that a result holds, and what its ranges are."""
    tested = [
        variable.attrs
        for name, variable in result.variables.items()
        if "family" in variable.attrs
    ]
    return [
        f"Significance: exact sign test over {facts['units']} {'series' if facts['units'] != 1 else 'series alone'} "
        f"({facts['family']} tests, Holm-corrected, 5 %). Whiskers and bands: range over series."
        for facts in tested
    ]


def make_figure(name: str, run: Run, others: Sequence[Lens] = ()) -> DrawnFigure:
    """Compute a figure.

    Args:
        name: of the figure.
        run: of the first model.
        others: further models, on the same series and horizon.
    """
    entry = find_figure(name)
    check_figure(entry, run.lens)
    refuse_several(entry, 1 + len(others))
    if not others:
        panels = _panels(entry, run)
    elif takes_models(entry):
        panels = _panels_of_models(entry, [run.lens, *others])
    else:
        panels = list(_beside(entry, run, others[0]))
    return DrawnFigure(entry, tuple(panels), run, tuple(others))


def _beside(entry: Figure, run: Run, other: Lens) -> Iterator[FigurePanel]:
    """Draw the panels of two models side by side, of the same series and horizon."""
    truth: dict[str, Any] = {"truth": run.truth}
    series = run.batch
    if run.full_batch is not None:
        truth, series = {"holdout": True}, run.full_batch
    second = replace(
        other.run(series, run.horizon, seed=run.seed, **truth),
        explicit_horizon=run.explicit_horizon,
    )
    pair = [_panels(entry, each) for each in (run, second)]
    ids = [run.lens.model_id, other.model_id]
    if [panel.name for panel in pair[0]] != [panel.name for panel in pair[1]]:
        raise InputError(
            f"figure {entry.name} has different parts for {ids[0]} and {ids[1]}"
        )
    labels = ids if ids[0] != ids[1] else [f"{ids[0]} (1)", f"{ids[1]} (2)"]
    for one, two in zip(*pair, strict=True):
        figure = viz.compare([one.figure, two.figure], labels, entry.title.rstrip("."))
        results = (*one.results, *two.results)
        yield FigurePanel(figure, name=one.name, results=results, note=one.note)


def refuse_several(entry: Figure, count: int) -> None:
    """Refuse more models than a figure can show."""
    if count > 2 and not takes_models(entry):
        names = ", ".join(
            name for name, each in figures().items() if takes_models(each)
        )
        raise InputError(
            f"figure {entry.name} can show two models side by side, but {count} are named; {names} shows more"
        )


def write_figure(
    drawing: DrawnFigure,
    out: str | Path,
    *,
    formats: Iterable[str] = ("html", *STATIC),
    column: str | float | None = None,
    model: str | None = None,
    sources: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write a figure's files and its caption, all of them or none."""
    kinds = checked_formats(formats)
    slug = file_word(model or drawing.run.lens.model_id)
    if drawing.others:
        slug += f"-and-{len(drawing.others)}-more"
    print_figures = {
        panel.name: viz.for_print(panel.figure, column)
        for panel in drawing.panels
        if set(kinds) & set(STATIC)
    }
    contents: dict[Path, bytes] = {}
    for panel in drawing.panels:
        stem = "-".join(
            part for part in (file_word(drawing.entry.name), panel.name, slug) if part
        )
        for kind in kinds:
            path = Path(out) / f"{stem}.{kind}"
            if progress is not None:
                progress(path.name)
            figure = print_figures[panel.name] if kind in STATIC else panel.figure
            contents[path] = rendered(figure, kind, scale=DOTS)
    text = drawing.caption(sources) + _sizes(print_figures)
    contents[Path(out) / f"{file_word(drawing.entry.name)}-{slug}.txt"] = text.encode()
    return write_together(contents)


def checked_formats(formats: Iterable[str]) -> list[str]:
    """Return the requested formats, each once."""
    kinds = list(dict.fromkeys(formats))
    for kind in kinds:
        if kind not in FORMATS:
            raise unknown_name("format", kind, FORMATS)
    return kinds


def _sizes(print_figures: dict[str, go.Figure]) -> str:
    """Describe the size of every printed part, in mm."""
    if not print_figures:
        return ""
    sizes = [
        f"  {suffix or 'figure'}: {figure.layout.meta['width_mm']:g} × {figure.layout.meta['height_mm']:g} mm"
        for suffix, figure in print_figures.items()
    ]
    smallest = min(figure.layout.meta["type_pt"] for figure in print_figures.values())
    return "\n".join(
        ["", f"Print (svg, pdf, png; type from {smallest:g} pt on)", *sizes, ""]
    )


def file_word(name: str) -> str:
    """Turn a name into a part of a file name: the end of a path, without what file systems or shells refuse."""
    last = name.rstrip("/").split("/")
    # a hub id keeps its owner, a folder only its own name
    short = (
        "-".join(last[-2:])
        if len(last) == 2 and not name.startswith((".", "~"))
        else last[-1]
    )
    return re.sub(r"[^\w.+-]+", "-", short).strip("-.") or "model"


_WIDTH = 100
_PROVENANCE = ("model", "revision", "architecture", "versions")
_OTHER_ATTRS = {"kind", "title", "source", *_PROVENANCE}


def _words(panel: FigurePanel, ids: Sequence[str]) -> str:
    meta = panel.figure.layout.meta or {}
    parts = [
        str(meta.get("title", "")).rstrip("."),
        str(meta.get("subtitle", "")).rstrip("."),
        panel.note.rstrip("."),
    ]
    # the name of a series keeps its letters
    sentences = [
        part if part.startswith(tuple(ids)) else part[:1].upper() + part[1:]
        for part in parts
        if part
    ]
    text = ". ".join(sentences) + "."
    return f"({panel.name}) {text}" if panel.name else text


def _parameters(results: Sequence[xr.Dataset]) -> list[str]:
    """Write one line per result: its kind, its sizes and the parameters of its probe."""
    lines = []
    for result in results:
        parameters = {
            key: value
            for key, value in result.attrs.items()
            if key not in _OTHER_ATTRS and value not in ("", None)
        }
        text = ", ".join(
            f"{key} = {_plain(value)}" for key, value in parameters.items()
        )
        sizes = ", ".join(f"{count} {name}" for name, count in result.sizes.items())
        lines.append(
            f"  {result.attrs.get('kind', 'result')}: {text}; dimensions: {sizes}."
        )
    return list(dict.fromkeys(lines))


def _plain(value: object) -> str:
    if isinstance(value, list | tuple | np.ndarray):
        return " ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _recipes(result: xr.Dataset) -> list[str]:
    if "components" not in result or "recipe" not in result.dims:
        return []
    rows = zip(
        result["recipe"].values,
        result["components"].values,
        result["heads_share"].values,
        strict=True,
    )
    return [
        f"  {name} ({100 * share:.3g} % of heads): {what}."
        for name, what, share in rows
        if str(what)
    ]


def _data(run: Run, sources: Sequence[str]) -> list[str]:
    """Describe the series, with source and licence of the bundled ones."""
    from tsfm_lens.data import bundled_info, bundled_names

    batch = run.batch if run.full_batch is None else run.full_batch
    lines = [f"  from: {'; '.join(sources)}."] if sources else []
    bundled = (
        set(bundled_names())
        if any(source.startswith("bundled:") for source in sources)
        else set()
    )
    for name, unit, freq, length in zip(
        batch.ids, batch.units, batch.freqs, batch.lengths, strict=True
    ):
        description = ", ".join(
            part for part in (f"{length} steps", freq or "", unit) if part
        )
        origin = ""
        if name in bundled:
            info = bundled_info(name)
            origin = f"; {info.title} ({info.source}; {info.licence})"
        lines.append(f"  {name}: {description}{origin}.")
    end = (
        "the last steps of each series are held out as the truth"
        if run.full_batch is not None
        else "no step is held out"
    )
    return [
        *lines,
        f"  {end}; models see at most {run.lens.adapter.context_length} steps before them.",
    ]
