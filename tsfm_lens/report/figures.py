"""Figures by name, for any run: computed, drawn, captioned and written.

Read :func:`make_figure` and :func:`write_figure` first. All files of a figure are
written, or none. How a figure is drawn is in :mod:`tsfm_lens.viz`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens import viz
from tsfm_lens.core.choices import STATIC, checked_formats
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.needs import NEEDS, Needs
from tsfm_lens.core.registry import (
    Figure,
    figures,
    find,
    find_figure,
)
from tsfm_lens.core.results import Results
from tsfm_lens.core.stats import LEVEL_TEXT
from tsfm_lens.models.architecture import Architecture
from tsfm_lens.models.cards import ModelCard
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.viz.saving import (
    drawn_font,
    missing_fonts,
    rendered,
    write_together,
)
from tsfm_lens.viz.theme import FONT

DOTS = 6.25  # dots per pixel of a png for print: 600 per inch


def takes_models(entry: Figure) -> bool:
    """Test if a figure is of several models, any number of them."""
    return find(entry.kind).of_models


def describe_computation(entry: Figure) -> str:
    """Describe what is computed for a figure, and on what."""
    return "; ".join(find(kind).computes for kind in (entry.kind, *entry.beside))


def requirements(entry: Figure) -> list[Needs]:
    """Return what a figure and its measurement need of a model."""
    names = [find(entry.kind).needs, entry.needs]
    return [NEEDS[name] for name in names if name]


def check_figure(entry: Figure, lens: Lens) -> None:
    """Raise an error for a model that the figure's definition does not allow."""
    for needs in requirements(entry):
        needs.check(lens, f"figure {entry.name}", _instead(entry))


def check_architecture(
    entry: Figure, architecture: Architecture | ModelCard, model: str
) -> None:
    """Raise an error for a model that is not open yet, by its architecture.

    See :func:`check_figure`.
    """
    for needs in requirements(entry):
        label = f"figure {entry.name}"
        needs.check_architecture(architecture, model, label, _instead(entry))


def _instead(entry: Figure) -> str:
    if not entry.instead:
        return ""
    return f"figure {entry.instead!r} shows what its layers hold"


def _results(entry: Figure, run: Run) -> tuple[xr.Dataset, ...]:
    """Compute the results from which a figure of one run is drawn."""
    # a figure of a horizon that nobody chose need not roll out
    subject = run if run.explicit_horizon else run.within_pass()
    cache = Results(subject, {entry.kind: entry.probe_options})
    return tuple(cache[kind] for kind in (entry.kind, *entry.beside))


@dataclass(frozen=True)
class DrawnFigure:
    """Figure with the results and the run that it shows."""

    entry: Figure
    figure: go.Figure
    results: tuple[xr.Dataset, ...]
    run: Run
    others: tuple[Lens, ...] = ()

    def caption(self, sources: Sequence[str] = ()) -> str:
        """Return title, content, all parameters and provenance.

        ``sources`` is where the series come from.
        """
        lines = [f"Figure {self.entry.name}. {self.entry.title}", ""]
        lines += [_content(self.figure, self.run.batch.ids), ""]
        lines += ["Computed by: " + describe_computation(self.entry) + "."]
        # results of one figure share their test, so the first line says it
        lines += [line for result in self.results for line in _tests(result)][:1]
        if lines[-1].startswith("Significance") and _has_whiskers(self.figure):
            lines[-1] += " Whiskers: range over series."
        lines += ["", "Parameters", *_parameters(self.results)]
        recipes = [line for result in self.results for line in _recipes(result)]
        if recipes:
            lines += ["", "Ablated", *dict.fromkeys(recipes)]
        definitions = dict.fromkeys(
            f"  {ds.attrs['source']}" for ds in self.results if ds.attrs.get("source")
        )
        lines += ["", "Definitions", *definitions]
        lines += ["", "Provenance"]
        for lens in (self.run.lens, *self.others):
            origin = lens.provenance()
            lines += [
                f"  {key}: {origin[key]}." for key in _PROVENANCE if origin.get(key)
            ]
        lines += [f"  seed: {self.run.seed}."]
        lines += ["", "Data", *_data(self.run, sources)]
        wrapped = []
        for line in lines:
            indent = "    " if line[:1] == " " else ""
            wrapped.append(fill(line, _WIDTH, subsequent_indent=indent))
        return "\n".join(wrapped) + "\n"


def _tests(result: Any) -> list[str]:
    """State the test of significance that a result holds."""
    tested = [
        variable.attrs
        for name, variable in result.variables.items()
        # which ``estimates.corrected`` writes to what was tested
        if "family" in variable.attrs
    ]
    lines = []
    for attrs in tested:
        units = "1 series alone" if attrs["units"] == 1 else f"{attrs['units']} series"
        lines.append(
            f"Significance: exact sign test over {units} ({attrs['family']} tests,"
            f" Holm-corrected, {LEVEL_TEXT})."
        )
    return lines


def _has_whiskers(figure: go.Figure) -> bool:
    """Test if a figure draws ranges, which are over series in figures of effects."""
    return any(
        trace[f"error_{axis}"].array is not None
        for trace in figure.data
        for axis in ("x", "y")
        if f"error_{axis}" in trace
    )


def make_figure(name: str, run: Run, others: Sequence[Lens] = ()) -> DrawnFigure:
    """Compute a figure.

    Args:
        name: of the figure.
        run: of the first model.
        others: further models, on the same series and horizon.

    Returns:
        The figure, with what stands beside it.
    """
    entry = find_figure(name)
    check_figure(entry, run.lens)
    check_single(entry, 1 + len(others))
    if others and not takes_models(entry):
        return _compare(entry, run, others[0])
    function: Any = find(entry.kind).function
    results: tuple[Any, ...]
    match find(entry.kind).takes:
        case "lenses":
            results = (function([run.lens, *others]),)
        case "runs":
            runs = [run, *(_of_other(run, lens) for lens in others)]
            results = (function(runs, **entry.probe_options),)
        case _:
            results = _results(entry, run)
    return DrawnFigure(entry, entry.draw(*results), results, run, tuple(others))


def _compare(entry: Figure, run: Run, other: Lens) -> DrawnFigure:
    """Draw two models side by side, on the same series and horizon."""
    second = _of_other(run, other)
    pair = [_results(entry, item) for item in (run, second)]
    labels = [run.lens.model_id, other.model_id]
    # a model beside itself, as in two revisions, must still have two names
    if labels[0] == labels[1]:
        labels = [f"{labels[0]} (1)", f"{labels[1]} (2)"]
    drawn = [entry.draw(*results) for results in pair]
    figure = viz.compare(drawn, labels, entry.title.rstrip("."))
    return DrawnFigure(entry, figure, (*pair[0], *pair[1]), run, (other,))


def _of_other(run: Run, other: Lens) -> Run:
    """Make the same run of another model."""
    truth: dict[str, Any] = {"truth": run.truth}
    series = run.batch
    # with the full series, from which a shorter horizon (within_pass) is held out anew
    if run.full_batch is not None:
        truth = {"holdout": True}
        series = run.full_batch
    return replace(
        other.run(series, run.horizon, seed=run.seed, **truth),
        explicit_horizon=run.explicit_horizon,
    )


def check_single(entry: Figure, count: int) -> None:
    """Raise InputError for more models than a figure can show."""
    if count > 2 and not takes_models(entry):
        names = ", ".join(
            name for name, figure in figures().items() if takes_models(figure)
        )
        raise InputError(
            f"figure {entry.name} can show two models side by side, but {count} are"
            f" named; {names} shows more"
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
    for_print = None
    # laid out once for all static formats, and not at all for html alone
    if set(kinds) & set(STATIC):
        for_print = viz.for_print(drawing.figure, column)
    stem = f"{file_word(drawing.entry.name)}-{slug}"
    contents: dict[Path, bytes] = {}
    for kind in kinds:
        path = Path(out) / f"{stem}.{kind}"
        if progress is not None:
            progress(path.name)
        figure = for_print if kind in STATIC else drawing.figure
        # kept in memory until all are rendered, so that an error leaves no file
        contents[path] = rendered(figure, kind, scale=DOTS)
    text = drawing.caption(sources)
    if for_print is not None:
        text += _size(for_print)
    contents[Path(out) / f"{stem}.txt"] = text.encode()
    return write_together(contents)


def _size(figure: go.Figure) -> str:
    """Describe the size of a printed figure in mm, its smallest type, and its font."""
    meta = figure.layout.meta
    text = (
        f"\nPrint (svg, pdf, png; type from {meta['type_pt']:g} pt on)\n"
        f"  {meta['width_mm']:g} × {meta['height_mm']:g} mm\n"
    )
    family = figure.layout.font.family or FONT
    missing = missing_fonts(family)
    if missing:
        absent = ", ".join(missing)
        text += f"  font {drawn_font(family)}: none of {absent} is installed\n"
    return text


def file_word(name: str) -> str:
    """Return a name as a part of a file name.

    It is the end of a path, without what file systems or shells refuse.
    """
    # a path may end in a slash, after which its last part is empty
    last = name.rstrip("/").split("/")
    # a hub id keeps its owner, a folder only its own name
    if len(last) == 2 and not name.startswith((".", "~")):
        short = "-".join(last[-2:])
    else:
        short = last[-1]
    # neither hidden nor an option of a command, whatever the name begins with
    return re.sub(r"[^\w.+-]+", "-", short).strip("-.") or "model"


_WIDTH = 100
_PROVENANCE = ("model", "revision", "architecture", "versions")
_OTHER_ATTRS = {"kind", "title", "source", *_PROVENANCE}


def _content(figure: go.Figure, ids: Sequence[str]) -> str:
    """Return title and subtitle of a figure as sentences."""
    meta = figure.layout.meta or {}
    parts = [str(meta.get(name, "")).rstrip(".") for name in ("title", "subtitle")]
    # the name of a series keeps its letters
    sentences = [
        part if part.startswith(tuple(ids)) else part[:1].upper() + part[1:]
        for part in parts
        if part
    ]
    return ". ".join(sentences) + "."


def _parameters(results: Sequence[xr.Dataset]) -> list[str]:
    """Write one line per result: its kind, sizes and probe parameters."""
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
    # two models side by side have the same parameters, which are stated once
    return list(dict.fromkeys(lines))


def _plain(value: object) -> str:
    if isinstance(value, list | tuple | np.ndarray):
        return " ".join(str(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _recipes(result: xr.Dataset) -> list[str]:
    """List the components of the recipes that a result ablates."""
    if "components" not in result or "recipe" not in result.dims:
        return []
    rows = zip(
        result["recipe"].values,
        result["components"].values,
        result["heads_share"].values,
        strict=True,
    )
    return [
        f"  {name} ({100 * share:.3g} % of heads): {components}."
        for name, components, share in rows
        if str(components)
    ]


def _data(run: Run, sources: Sequence[str]) -> list[str]:
    """Describe the series, with source and licence of the bundled ones."""
    from tsfm_lens.data import bundled_info, bundled_names

    # lengths are those of the series as given, with the steps that were held out
    batch = run.batch if run.full_batch is None else run.full_batch
    lines = []
    if sources:
        lines.append(f"  from: {'; '.join(sources)}.")
    # a user's series may have the name of a bundled one
    bundled: set[str] = set()
    if any(source.startswith("bundled:") for source in sources):
        bundled = set(bundled_names())
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
    truth = "no step is held out"
    if run.full_batch is not None:
        truth = "the last steps of each series are held out as the truth"
    lines.append(
        f"  {truth}; models see at most {run.lens.adapter.context_length} steps"
        " before them."
    )
    return lines
