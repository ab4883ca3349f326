"""Captions: content of a figure, with every parameter and the origin of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import numpy as np
import xarray as xr

from tsfm_lens.figures.entry import FigureFile, NamedFigure
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

_WIDTH = 100
_PROVENANCE = ("model", "revision", "architecture", "versions")
_OTHER_ATTRS = {"kind", "title", "source", *_PROVENANCE}


def caption(
    entry: NamedFigure, files: Sequence[FigureFile], run: Run, sources: Sequence[str] = (), others: Sequence[Lens] = ()
) -> str:
    """Write the text that stands beside a figure's files."""
    lines = [f"Figure {entry.name}. {entry.title}", ""]
    for file in files:
        lines += [_words(file, run.batch.ids), ""]
    lines += ["Computed by: " + entry.computes + "."]
    if entry.paper:
        lines += ["In the tsfm-lens paper: " + entry.paper + "."]
    results = [result for file in files for result in file.results]
    lines += ["", "Parameters", *_parameters(results)]
    recipes = [line for result in results for line in _recipes(result)]
    if recipes:
        lines += ["", "Ablated", *dict.fromkeys(recipes)]
    definitions = list(dict.fromkeys(str(result.attrs["source"]) for result in results if result.attrs.get("source")))
    lines += ["", "Definitions", *(f"  {source}" for source in definitions)]
    lines += ["", "Provenance", *(line for lens in (run.lens, *others) for line in _provenance(lens))]
    lines += [f"  seed: {run.seed}."]
    lines += ["", "Data", *_data(run, sources)]
    return "\n".join(fill(line, _WIDTH, subsequent_indent="    " if line[:1] == " " else "") for line in lines) + "\n"


def _words(file: FigureFile, ids: Sequence[str]) -> str:
    meta = file.figure.layout.meta or {}
    parts = [str(meta.get("title", "")).rstrip("."), str(meta.get("subtitle", "")).rstrip("."), file.note.rstrip(".")]
    # the name of a series keeps its letters
    sentences = [part if part.startswith(tuple(ids)) else part[:1].upper() + part[1:] for part in parts if part]
    text = ". ".join(sentences) + "."
    return f"({file.suffix}) {text}" if file.suffix else text


def _parameters(results: Sequence[xr.Dataset]) -> list[str]:
    """Write one line per result: its kind, its sizes and the parameters of its probe."""
    lines = []
    for result in results:
        parameters = {
            key: value for key, value in result.attrs.items() if key not in _OTHER_ATTRS and value not in ("", None)
        }
        text = ", ".join(f"{key} = {_plain(value)}" for key, value in parameters.items())
        sizes = ", ".join(f"{count} {name}" for name, count in result.sizes.items())
        lines.append(f"  {result.attrs.get('kind', 'result')}: {text}; dimensions: {sizes}.")
    return list(dict.fromkeys(lines))


def _plain(value: object) -> str:
    if isinstance(value, list | tuple | np.ndarray):
        return " ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _recipes(result: xr.Dataset) -> list[str]:
    if "components" not in result or "recipe" not in result.dims:
        return []
    rows = zip(result["recipe"].values, result["components"].values, result["heads_share"].values, strict=True)
    return [f"  {name} ({100 * share:.3g} % of heads): {what}." for name, what, share in rows if str(what)]


def _provenance(lens: Lens) -> list[str]:
    facts = lens.provenance()
    return [f"  {key}: {facts[key]}." for key in _PROVENANCE if facts.get(key)]


def _data(run: Run, sources: Sequence[str]) -> list[str]:
    """Describe the series, with source and licence of the bundled ones."""
    from tsfm_lens.data import bundled_info, bundled_names

    batch = run.batch if run.full_batch is None else run.full_batch
    lines = [f"  from: {'; '.join(sources)}."] if sources else []
    bundled = set(bundled_names()) if any(source.startswith("bundled:") for source in sources) else set()
    for name, unit, freq, length in zip(batch.ids, batch.units, batch.freqs, batch.lengths, strict=True):
        description = ", ".join(part for part in (f"{length} steps", freq or "", unit) if part)
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
    return [*lines, f"  {end}; models see at most {run.lens.adapter.context_length} steps before them."]
