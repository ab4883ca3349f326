"""Figures by name: those of the tsfm-lens paper, and one for every renderer, for any model and series."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens import viz
from tsfm_lens.errors import InputError, UnknownNameError, unknown_name
from tsfm_lens.models.architecture import Architecture
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.registry import Figure, Measurement, Needs, find, measurements
from tsfm_lens.results import Results
from tsfm_lens.viz.saving import FORMATS, rendered, write_together


def long_run(run: Run, paper: int, *, within_pass: bool = False) -> Run:
    """Extend the run to a long horizon: the caller's choice, else the paper's as far as the series allow."""
    adapter = run.lens.adapter
    steps = min(paper, adapter.longest_pass) if within_pass else paper
    if run.explicit_horizon:
        return run
    if run.full_batch is not None:
        shortest = min(run.full_batch.lengths)
        steps = max(
            1, min(steps, max(shortest - adapter.context_length, shortest // 2))
        )
    return run.at(steps)


def within_pass(run: Run) -> Run:
    """Shorten the run to at most one pass, for measurements beside a longer rollout."""
    return run.at(min(run.horizon, run.lens.adapter.longest_pass))


@dataclass(frozen=True)
class FigureFile:
    """One file of a figure."""

    suffix: str
    figure: go.Figure
    results: tuple[xr.Dataset, ...]
    note: str = ""


@dataclass(frozen=True)
class NamedFigure:
    """One figure by name."""

    name: str
    title: str
    computes: str
    renderers: tuple[str, ...]
    draw: Callable[[Run], list[FigureFile]]
    paper: str = ""
    compare: Callable[[Sequence[Lens]], list[FigureFile]] | None = None
    needs: tuple[Needs, ...] = ()
    instead: str = ""

    def check(self, lens: Lens) -> None:
        """Refuse a model that the figure's definition does not allow."""
        for needs in self.needs:
            needs.check(lens, f"figure {self.name}", self.instead)

    def check_architecture(self, architecture: Architecture, model: str) -> None:
        """Refuse a model that is not open yet by its architecture; see :meth:`check`."""
        for needs in self.needs:
            needs.check_architecture(
                architecture, model, f"figure {self.name}", self.instead
            )


STATIC = ("svg", "pdf", "png")
DOTS = 6.25  # dots per pixel of a png for print: 600 per inch

_EXTRA_FIGURES: dict[str, NamedFigure] = {}
_ELSEWHERE: dict[str, str] = {}


def add_figures(entries: Iterable[NamedFigure], elsewhere: Mapping[str, str]) -> None:
    """Register figures of a package above."""
    _EXTRA_FIGURES.update((entry.name, entry) for entry in entries)
    _ELSEWHERE.update(elsewhere)


def figures() -> dict[str, NamedFigure]:
    """Return every figure by name: those that were added, then one per function, of the first kind that it draws."""
    by_name: dict[str, NamedFigure] = {}
    for measurement in measurements().values():
        for figure in measurement.figures:
            if measurement.probe is not None and figure.name not in by_name:
                by_name[figure.name] = (_of_run if measurement.of_run else _of_models)(
                    measurement, figure
                )
    return _EXTRA_FIGURES | by_name


def _of_run(measurement: Measurement, figure: Figure) -> NamedFigure:
    def draw(run: Run) -> list[FigureFile]:
        cache = Results(run, {measurement.kind: figure.probe_options})
        results = tuple(cache[kind] for kind in (measurement.kind, *figure.beside))
        return [FigureFile("", figure.draw(*results), results)]

    probes = [measurement.probe, *(find(kind).probe for kind in figure.beside)]
    return NamedFigure(
        figure.name,
        figure.title,
        "; ".join(probe.words for probe in probes if probe is not None),
        (figure.name,),
        draw,
        needs=tuple(
            needs for needs in (measurement.needs, figure.needs) if needs is not None
        ),
        instead=f"figure {figure.instead!r} shows what its layers hold"
        if figure.instead
        else "",
    )


def _of_models(measurement: Measurement, figure: Figure) -> NamedFigure:
    probe = measurement.probe
    assert probe is not None

    def compare(lenses: Sequence[Lens]) -> list[FigureFile]:
        result = probe.function(lenses)
        return [FigureFile("", figure.draw(result), (result,))]

    return NamedFigure(
        figure.name,
        figure.title,
        probe.words,
        (figure.name,),
        lambda run: compare([run.lens]),
        compare=compare,
    )


def find_figure(name: str) -> NamedFigure:
    """Find a figure by its name; "fig. 6b" finds "6B"."""
    available = figures()
    short = re.sub(r"^fig(ure|\.)?\s*", "", name.strip(), flags=re.IGNORECASE)
    for candidate in (name, short, short.upper()):
        if candidate in available:
            return available[candidate]
    if short in _ELSEWHERE:
        raise UnknownNameError(_ELSEWHERE[short])
    raise unknown_name(
        "figure", name, available, hint="`tsfm-lens figure --list` names them all."
    )


@dataclass(frozen=True)
class DrawnFigure:
    """Figure that was computed."""

    entry: NamedFigure
    files: tuple[FigureFile, ...]
    run: Run
    others: tuple[Lens, ...] = ()

    def caption(self, sources: Sequence[str] = ()) -> str:
        """Write title, content, all parameters and provenance; ``sources`` is where the series come from."""
        lines = [f"Figure {self.entry.name}. {self.entry.title}", ""]
        for file in self.files:
            lines += [_words(file, self.run.batch.ids), ""]
        lines += ["Computed by: " + self.entry.computes + "."]
        if self.entry.paper:
            lines += ["In the tsfm-lens paper: " + self.entry.paper + "."]
        results = [result for file in self.files for result in file.results]
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
    """Compute a figure."""
    entry = find_figure(name)
    entry.check(run.lens)
    if not others:
        return DrawnFigure(
            entry,
            tuple(entry.draw(run if run.explicit_horizon else within_pass(run))),
            run,
        )
    refuse_several(entry, 1 + len(others))
    if entry.compare is not None:
        return DrawnFigure(
            entry, tuple(entry.compare([run.lens, *others])), run, tuple(others)
        )
    return DrawnFigure(entry, tuple(_beside(entry, run, others[0])), run, tuple(others))


def _beside(entry: NamedFigure, run: Run, other: Lens) -> Iterator[FigureFile]:
    """Draw the files of two models side by side, of the same series and horizon."""
    how: dict[str, Any] = (
        {"holdout": True} if run.full_batch is not None else {"truth": run.truth}
    )
    series = run.batch if run.full_batch is None else run.full_batch
    second = replace(
        other.run(series, run.horizon, seed=run.seed, **how),
        explicit_horizon=run.explicit_horizon,
    )
    files = [
        entry.draw(each if run.explicit_horizon else within_pass(each))
        for each in (run, second)
    ]
    if [file.suffix for file in files[0]] != [file.suffix for file in files[1]]:
        raise InputError(
            f"figure {entry.name} has different parts for {run.lens.model_id} and {other.model_id}"
        )
    ids = [run.lens.model_id, other.model_id]
    names = (
        ids
        if ids[0] != ids[1]
        else [f"{name} ({place})" for place, name in enumerate(ids, start=1)]
    )
    for one, two in zip(*files, strict=True):
        figure = viz.compare([one.figure, two.figure], names, entry.title.rstrip("."))
        yield FigureFile(one.suffix, figure, (*one.results, *two.results), one.note)


def refuse_several(entry: NamedFigure, count: int) -> None:
    """Refuse more models than a figure can show."""
    if count > 2 and entry.compare is None:
        names = ", ".join(
            name for name, each in figures().items() if each.compare is not None
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
        file.suffix: viz.for_print(file.figure, column)
        for file in drawing.files
        if set(kinds) & set(STATIC)
    }
    contents: dict[Path, bytes] = {}
    for file in drawing.files:
        stem = "-".join(
            part for part in (file_word(drawing.entry.name), file.suffix, slug) if part
        )
        for kind in kinds:
            path = Path(out) / f"{stem}.{kind}"
            if progress is not None:
                progress(path.name)
            figure = print_figures[file.suffix] if kind in STATIC else file.figure
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


def _words(file: FigureFile, ids: Sequence[str]) -> str:
    meta = file.figure.layout.meta or {}
    parts = [
        str(meta.get("title", "")).rstrip("."),
        str(meta.get("subtitle", "")).rstrip("."),
        file.note.rstrip("."),
    ]
    # the name of a series keeps its letters
    sentences = [
        part if part.startswith(tuple(ids)) else part[:1].upper() + part[1:]
        for part in parts
        if part
    ]
    text = ". ".join(sentences) + "."
    return f"({file.suffix}) {text}" if file.suffix else text


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
