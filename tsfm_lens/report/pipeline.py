"""Pipeline from a lens and series to a report, as ``tsfm-lens report`` runs it.

Read :func:`report` first: :func:`analyse` computes its measurements and
:func:`write_page` writes them. Sections that the model or the series do not allow are
left out, with the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.axes import short_ids
from tsfm_lens.core.clocks import on_clock
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import corrected
from tsfm_lens.core.io import find_page
from tsfm_lens.core.progress import DelayedProgress
from tsfm_lens.core.registry import Measurement, find
from tsfm_lens.data import (
    SeriesBatch,
    as_series,
    bundled_info,
)
from tsfm_lens.data.batch import Item, item_rows
from tsfm_lens.data.sources import find_bundled, read_sources
from tsfm_lens.report.build import build_report
from tsfm_lens.viz.select import names
from tsfm_lens.viz.words import capital

if TYPE_CHECKING:
    from tsfm_lens.models import Lens
    from tsfm_lens.models.run import Run

__all__ = [
    "SECTIONS",
    "analyse",
    "as_plain",
    "select_defined",
    "hook_shapes",
    "provenance",
    "read_sources",
    "report",
]

Progress = Callable[[str, int, int], None]

SECTIONS = (
    "forecast",
    "logit_lens",
    "layer_gain",
    "attribution",
    "ablation_effects",
    "attention_patterns",
    "head_states",
)
"""Kinds of the measurements that a report has unless it is asked for others."""
_MAX_NAMES = 4  # series, of those that are given in Python


def analyse(
    run: Run,
    *,
    sections: Sequence[str] = SECTIONS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
    left_out: dict[str, str] | None = None,
) -> dict[str, xr.Dataset]:
    """Compute the measurements of a report, each once.

    Args:
        run: what every section looks at; at most one pass of the model.
        sections: kinds of measurements, in the order of the report.
        options: of the probes, by kind of measurement.
        progress: called as (name of the result, done, total) before, within and after
            each. None shows a display in a terminal or notebook.
        left_out: gets the headings of sections that these series do not allow, with the
            reasons; None refuses them.

    Returns:
        Labelled results by name, their tests corrected together. Without a truth the
        gain is measured against the model's own forecast.

    Raises:
        InputError: one pass does not cover the horizon, or a definition forbids the
            model, or the series (of every section, with ``left_out``).
        UnknownNameError: no measurement has this kind.

    Example:
        >>> list(pipeline.analyse(run, sections=("forecast", "head_entropy")))
        ['forecast', 'head_entropy']
    """
    from tsfm_lens.core.results import Results

    cache = Results(run, options)
    results: dict[str, xr.Dataset] = {}
    refusal: InputError | None = None
    with DelayedProgress() as shown:
        for name, measurement, defaults in _results(run.lens, sections):
            arguments = {**defaults, **(options or {}).get(measurement.kind, {})}
            notify = partial(progress or shown, name)
            notify(0, 1)
            cache.progress = notify
            try:
                # a probe that needs another result may have computed it already, under
                # its kind; a section in several variants has options and a name for
                # each
                if arguments or name not in cache.computed:
                    cache.computed[name] = cache.compute(measurement.kind, **arguments)
                results[name] = cache.computed[name]
            except InputError as error:
                if left_out is None:
                    raise
                left_out[measurement.title] = str(error)
                refusal = error
                # results that are made of this one are refused for the same reason
                cache.refused[name] = error
            notify(1, 1)
    if refusal is not None and not results:
        raise refusal
    # all tests of a page are one family, so they are corrected once all are there
    return corrected(results)


def select_defined(
    lens: Lens, sections: Sequence[str], left_out: dict[str, str]
) -> list[str]:
    """Select the sections whose definition allows a model.

    Args:
        lens: the model.
        sections: kinds of measurements.
        left_out: gets the headings of the others, with the reasons.

    Returns:
        The kinds that are allowed, in their order.

    Raises:
        InputError: it allows none.

    Example:
        >>> pipeline.select_defined(lens, ("forecast", "covariate_use"), {})
        ['forecast']
    """
    allowed: list[str] = []
    for measurement in checked_sections(sections):
        try:
            measurement.check(lens)
            allowed.append(measurement.kind)
        except InputError as error:
            left_out[measurement.title] = str(error)
    if not allowed:
        raise InputError("; ".join(left_out.values()))
    return allowed


def _results(
    lens: Lens, sections: Sequence[str]
) -> list[tuple[str, Measurement, Mapping[str, Any]]]:
    """Return the results of a report: name, measurement, and options of its probe."""
    results: list[tuple[str, Measurement, Mapping[str, Any]]] = []
    for measurement in checked_sections(sections):
        measurement.check(lens)
        named: Mapping[str, Mapping[str, Any]] = {measurement.kind: {}}
        if measurement.each is not None:
            named = measurement.each(lens)
        results += [(name, measurement, options) for name, options in named.items()]
    return results


def checked_sections(sections: Sequence[str]) -> list[Measurement]:
    """Return the measurements of a report of one run, each once."""
    if not sections:
        raise InputError(
            "a report needs at least one section; `tsfm-lens measurements` lists them"
        )
    measurements = [find(kind) for kind in dict.fromkeys(sections)]
    for measurement in measurements:
        if not measurement.of_run:
            raise InputError(f"{measurement.kind!r} is {measurement.origin}")
    return measurements


def report(
    run: Run,
    out: str | Path,
    *,
    item: Item = 0,
    title: str | None = None,
    sections: Sequence[str] = SECTIONS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    sources: Sequence[str] = (),
    progress: Progress | None = None,
    left_out: dict[str, str] | None = None,
) -> Path:
    """Analyse a run and write one HTML file that opens offline.

    Its head names the sections that these series do not allow.

    Args:
        run: what every section looks at; at most one pass of the model. Where it says
            nothing of twins, sections of at most
            :data:`tsfm_lens.core.estimates.TWIN_WORK` compare their effects with 24.
        out: folder for index.html.
        item: whose forecast the sections of one item are of, by position or name; the
            page says which they are.
        title: of the report; the model's and the series' names if None.
        sections: kinds of measurements, in the order of the report.
        options: of the probes, by kind of measurement.
        sources: where the series come from, in words or as ``bundled:NAME``.
        progress: called as (name of the result, done, total) before, within and after
            each. None shows a display in a terminal or notebook.
        left_out: gets the headings of sections that these series do not allow, with the
            reasons; the page names them in any case.

    Returns:
        The file.

    Raises:
        InputError: no section can be computed or, before that, the folder cannot be
            written.
        UnknownNameError: no measurement has this kind, or no item this name.

    Example:
        >>> pipeline.report(run, folder, sections=("forecast",)).name
        'index.html'
    """
    # a folder that cannot be written is an error before anything runs
    find_page(out)
    missing = {} if left_out is None else left_out
    if tuple(sections) == SECTIONS:
        # nobody asked for what this model cannot have
        sections = select_defined(run.lens, sections, missing)
    run = with_item_first(run, item).compared()
    results = analyse(
        run, sections=sections, options=options, progress=progress, left_out=missing
    )
    return write_page(
        run,
        results,
        out,
        title or make_heading(run.lens.model_id, run.batch),
        sources,
        progress,
        missing,
    )


def with_item_first(run: Run, item: Item) -> Run:
    """Return a run with one item moved to its front.

    Sections of one item are of the first. Errors are those of ``item_rows``.
    """
    rows = item_rows(run.batch, item)
    # the other items stay, for sections over several of them
    rest = [row for row in range(len(run.batch)) if row not in rows]
    return run.select([*rows, *rest])


def make_heading(model: str, batch: SeriesBatch) -> str:
    """Name a model and the first series that it forecasts."""
    ids = short_ids(batch.targets().ids)
    heading = f"{model} on {', '.join(ids[:_MAX_NAMES])}"
    if len(ids) > _MAX_NAMES:
        heading += " …"
    return heading


def write_page(
    run: Run,
    results: Mapping[str, xr.Dataset],
    out: str | Path,
    heading: str,
    sources: Sequence[str],
    progress: Progress | None,
    missing: Mapping[str, str],
    lead: Sequence[str] = (),
) -> Path:
    """Write the results of a run as one HTML file.

    Missing sections are named in it. ``lead`` names the results that answer the page's
    question, which stand first.

    Returns:
        The file.
    """
    notify = progress or (lambda *_: None)
    notify("report", 0, 1)
    notes = [
        *list_remarks(run.batch),
        *_of_first_steps(run, results),
        *_of_one_item(run.batch, results),
        *(
            # of several clauses of a reason the first says what is wrong, the rest what
            # to do
            f"Left out: {section}, since {reason.partition('; ')[0].rstrip('.')}."
            for section, reason in missing.items()
        ),
    ]
    path = build_report(
        results,
        out,
        title=heading,
        provenance=provenance(run, sources),
        notes=notes,
        lead=lead,
    )
    notify("report", 1, 1)
    return path


def _of_first_steps(run: Run, results: Mapping[str, xr.Dataset]) -> list[str]:
    """Say which chapters are of fewer steps than the forecast has."""
    steps_by_title = {
        find(result.attrs["kind"]).title: int(result.attrs.get("horizon", run.horizon))
        for result in results.values()
    }
    return [
        f"{title}: of the first {steps} of {run.horizon} steps, which one pass of"
        f" {run.lens.model_id} forecasts."
        for title, steps in steps_by_title.items()
        if steps < run.horizon
    ]


def _of_one_item(batch: SeriesBatch, results: Mapping[str, xr.Dataset]) -> list[str]:
    """Return a sentence on which chapters are of one item of several.

    The note has the item, and how another is chosen.
    """
    items = batch.rows_by_group()
    group_of = dict(zip(batch.ids, batch.groups, strict=True))
    titles: list[str] = []
    for ds in results.values():
        # a result without an axis of series may name its one series in its attributes
        series = names(ds, "series") or [str(ds.attrs.get("series", ""))]
        if len({group_of[name] for name in series if name in group_of}) == 1:
            titles.append(find(ds.attrs["kind"]).title)
    if len(items) < 2 or not titles:
        return []
    first = next(iter(items))
    return [
        f"Of {first} alone, one of {len(items)} items:"
        f" {', '.join(dict.fromkeys(titles))}. The item is chosen with --item NAME, in"
        " Python with item=NAME."
    ]


def list_remarks(batch: SeriesBatch) -> list[str]:
    """Return the notes of a batch as sentences."""
    return [f"{capital(note)}." for note in batch.notes]


def list_steps(lens: Lens, sections: Sequence[str] = SECTIONS) -> list[str]:
    """Return names of the steps of :func:`report`, in order."""
    kinds = sections
    if tuple(sections) == SECTIONS:
        kinds = select_defined(lens, sections, {})
    return [*(name for name, _, _ in _results(lens, kinds)), "report"]


def provenance(run: Run, sources: Sequence[str]) -> dict[str, str]:
    """Collect the origin of a report's numbers, in the order of its head.

    Args:
        run: the forecast that the report is of.
        sources: where the series come from, in words or as ``bundled:NAME``.

    Returns:
        Texts by heading, such as "model" and "horizon".

    Example:
        >>> pipeline.provenance(run, ["bundled:co2"])["horizon"]
        '12 steps, held out as the truth'
    """
    lines = {key: str(value) for key, value in run.lens.provenance().items() if value}
    infos = [bundled_info(name) for name in find_bundled(sources)]
    ids = short_ids(run.batch.targets().ids)
    given = f"given in Python: {', '.join(ids[:_MAX_NAMES])}"
    if len(ids) > _MAX_NAMES:
        given += f" and {len(ids) - _MAX_NAMES} more"
    lines["data"] = "; ".join(sources) or given
    if infos:
        lines["series"] = "; ".join(
            f"{info.name}: {info.title} ({info.source}; {info.licence})"
            for info in infos
        )
    lines["context"] = f"up to {max(run.batch.lengths)} steps of each series"
    location = "held out as the truth"
    if run.truth is None:
        location = "beyond the end of each series"
    lines["horizon"] = f"{run.horizon} steps, {location}"
    lines["seed"] = str(run.seed)
    lines["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return lines


def hook_shapes(
    lens: Lens, pattern: str = "**"
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the hook points that match a glob: name, axes and shape.

    The shape is that in a run on one short series.

    Args:
        lens: the model.
        pattern: glob over names of hook points.

    Returns:
        A triple (name, axes, shape) for each hook point.

    Raises:
        UnknownNameError: nothing matches; the message has the nearest names.

    Example:
        >>> pipeline.hook_shapes(lens, "decoder_blocks.0.hook_resid_pre")[0][2]
        (1, 8, 96)
    """
    import torch

    from tsfm_lens.hooks.names import select

    names = select(lens.registry.points, pattern)
    # shapes need a pass of any series; a short one is fast
    context = min(64, lens.adapter.context_length)
    horizon = min(8, lens.adapter.prediction_length)
    # an adapter gives an example where its model does not take a plain series
    example = getattr(lens.adapter, "example", None)
    if example is None:
        series = as_series(np.sin(np.arange(context) * (2 * np.pi / 12)))
    else:
        series = example(0, context)
    # a token model's decoder needs values to run along
    future = None
    if lens.adapter.readout == "token":
        future = np.zeros((1, horizon))
    with torch.no_grad():
        _, activations = lens.run_with_cache(series, names_filter=names, future=future)
    shapes = {name: tuple(activations[name].shape) for name in names}
    return [
        (name, axes, shapes[name]) for name, axes in lens.hook_table() if name in shapes
    ]


def as_plain(result: xr.Dataset) -> dict[str, Any]:
    """Convert a labelled result to JSON-able values.

    These are attributes, coordinates and variables; missing values are None.

    Args:
        result: any labelled result.

    Returns:
        A dict of "attrs", "dims" (sizes by dimension), "coords" and "data_vars".

    Example:
        >>> pipeline.as_plain(run.forecast.to_dataset())["dims"]["step"]
        12
    """
    plain = result.to_dict(data="array")
    parts = {
        group: {
            str(name): {
                "dims": list(entry["dims"]),
                "data": _plain_values(entry),
            }
            for name, entry in plain[group].items()
        }
        for group in ("coords", "data_vars")
    }
    attrs = {str(key): _plain(np.asarray(value)) for key, value in result.attrs.items()}
    return {
        "attrs": attrs,
        "dims": {str(k): int(v) for k, v in result.sizes.items()},
        **parts,
    }


def _plain_values(entry: Mapping[str, Any]) -> Any:
    """Convert the values of a variable; dates of a clock are text with their offset."""
    values = np.asarray(entry["data"])
    clock = entry["attrs"].get("clock", "")
    if values.dtype.kind != "M" or not clock:
        return _plain(values)
    texts = [
        None if date is pd.NaT else date.isoformat() for date in on_clock(values, clock)
    ]
    return np.array(texts, dtype=object).reshape(values.shape).tolist()


def _plain(array: np.ndarray) -> Any:
    """Convert an array to nested lists; NaN, infinity and NaT become None."""
    if array.ndim:
        return [_plain(part) for part in array]
    # of no dimension: a Python scalar, except for dates of nanoseconds, which become
    # integers and are written from the array
    item = array.item()
    if array.dtype.kind == "M":
        if np.isnat(array):
            return None
        return str(array.astype("datetime64[s]"))
    if array.dtype.kind == "f":
        # a float32 is written with the digits it has
        if np.isfinite(item):
            return float(str(array))
        return None
    return item
