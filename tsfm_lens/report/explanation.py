"""Explanation of one forecast as a page.

Read :func:`explain` first: it measures the effects of the inputs, their routes through
the heads, and the faithfulness of both. :class:`Explanation` holds the results and
writes them as files. The measurements themselves are in :mod:`tsfm_lens.explain`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.core.axes import short_ids
from tsfm_lens.core.choices import ADAPTIVE, check_explanation
from tsfm_lens.core.extensions import extensible
from tsfm_lens.core.registry import find, frame
from tsfm_lens.core.spreadsheets import to_csv
from tsfm_lens.core.verdict import list_standing, list_undecided, verdict
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import Item
from tsfm_lens.explain.attribution import METHODS
from tsfm_lens.explain.masking import Reference
from tsfm_lens.explain.scenarios import explain_change, what_if
from tsfm_lens.models.run import Run
from tsfm_lens.report import pipeline
from tsfm_lens.viz.covariate_use import covariate_totals
from tsfm_lens.viz.input_attribution import input_totals, read_inputs
from tsfm_lens.viz.input_effects import item_overview
from tsfm_lens.viz.panels import name_segments, name_target
from tsfm_lens.viz.saving import locate_browser, printed, write_together
from tsfm_lens.viz.scenarios import ANSWERS, name_scenario
from tsfm_lens.viz.words import listed

__all__ = ["SECTIONS", "Explanation", "explain"]

_MASKING_KINDS = (
    "input_attribution",
    "input_routes",
    "deletion_curves",
    "route_faithfulness",
)
SECTIONS = (*_MASKING_KINDS, "input_effects", "covariate_use", "forecast")
"""Kinds of the measurements that an explanation has unless it is asked for others.

"input_effects" are among them for several items only.
"""
# stretches of the target's past for effects over many items
_PARTS = 2
# segments up to which all masks are run
_EXACT = 6


@extensible
class Explanation(dict[str, xr.Dataset]):
    """Results of an explanation by name.

    ``plot()`` draws what moved the forecast, ``plot("dots")`` another figure.
    """

    def __repr__(self) -> str:
        text = f"Explanation with {', '.join(self)}"
        if headline := self.summary()["headline"]:
            text += f"\n{headline}"
        return text

    def summary(self) -> dict[str, Any]:
        """Collect what the explanation says as JSON-able values.

        Returns:
            ``answers`` to what-if and change; ``headline``; ``verdict`` of all
            faithfulness tests and its ``reasons``; ``undecided``, the segments whose
            effect they cannot tell from zero; ``inputs``, the total effect of each
            input in data units; ``items`` of several, worst error first;
            ``covariates``, their worth, response and share; ``clock``, the zone of all
            dates, "" if they came without one.
        """
        word, reasons = summarize_verdict(self)
        inputs = self.get("input_attribution")
        use = self.get("covariate_use")
        effects = self.get("input_effects")
        test = self.get("deletion_curves")
        items = [] if effects is None else _list_items(effects)
        if inputs is not None:
            # what moves the forecast, and its level
            headline = " ".join(read_inputs(inputs)[:2])
        elif word:
            headline = f"Verdict: the explanation {word}."
        else:
            headline = ""
        return {
            "answers": [
                text
                for kind, read in ANSWERS.items()
                if kind in self
                for text in read(self[kind])
            ],
            "headline": headline,
            "verdict": word,
            "reasons": reasons,
            "undecided": [] if test is None else list_undecided(_with_names(test)),
            "inputs": [] if inputs is None else input_totals(inputs),
            "items": items,
            "covariates": [] if use is None else covariate_totals(use),
            "clock": next(map(_clock, self.values()), ""),
        }

    def write(self, folder: str | Path) -> list[Path]:
        """Write the explanation as files into a folder.

        They are ``explanation.json``, and in ``numbers`` a NetCDF file and the tables
        as CSV of each result.

        Args:
            folder: new or old.

        Returns:
            The files: all of them are written, or none.

        Raises:
            InputError: the folder cannot be written.
        """
        # NaN is no JSON: other readers would refuse the file
        summary = json.dumps(self.summary(), indent=1, allow_nan=False)
        contents = {Path(folder) / "explanation.json": summary.encode()}
        numbers = Path(folder) / "numbers"
        for name, data in self.items():
            # scipy writes NetCDF 3 in memory, without a library of its own for NetCDF 4
            contents[numbers / f"{name}.nc"] = bytes(data.to_netcdf(engine="scipy"))
            tables: dict[str, Any] = {}
            # figures of a result may share their table
            for figure in find(data.attrs["kind"]).figures:
                if figure.table and figure.table not in tables.values():
                    tables[figure.name if tables else name] = figure.table
            for label, table in (tables or {name: _largest}).items():
                contents[numbers / f"{label}.csv"] = to_csv(table(data)).encode()
        return write_together(contents)


def _clock(result: xr.Dataset) -> str:
    if "forecast_timestamp" in result.coords:
        return str(result["forecast_timestamp"].attrs.get("clock", ""))
    return ""


def _list_items(effects: xr.Dataset) -> list[dict[str, Any]]:
    """List the overview of the items, without what is not known."""
    records = item_overview(effects).to_dict("records")
    # JSON has no NaN
    return [
        {str(key): value for key, value in record.items() if pd.notna(value)}
        for record in records
    ]


def _largest(data: xr.Dataset) -> pd.DataFrame:
    """Tabulate the variables with the most dimensions."""
    dims = max(data.data_vars.values(), key=lambda variable: variable.ndim).dims
    names = [
        str(name) for name, variable in data.data_vars.items() if variable.dims == dims
    ]
    return frame(data, *names)


@with_messages_once
def explain(
    run: Run,
    out: str | Path | None = None,
    *,
    item: Item = None,
    method: str | None = None,
    reference: Reference = "mean",
    parts: Any = None,
    changes: Mapping[str, Any] | None = None,
    start: int | str | None = None,
    stop: int | str | None = None,
    since: Run | None = None,
    sections: Sequence[str] = SECTIONS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    title: str | None = None,
    sources: Sequence[str] = (),
    pdf: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    left_out: dict[str, str] | None = None,
) -> Explanation:
    """Explain a forecast by its inputs and their routes, and test the explanation.

    The use of covariates is measured as well. Sections that the model or the series do
    not allow are left out.

    Args:
        run: the forecast. Beyond one pass of the model, faithfulness by masking is left
            out, and each forecast with masked inputs takes several passes.
        out: folder for index.html and the files of :meth:`Explanation.write`; nothing
            is written if None.
        item: whose forecast is explained, by position or name; the only one if None.
            Effects over items and the use of covariates are measured over all.
        method: of input attribution: "shapley", "occlusion", "inclusion", "integrated
            gradients", "gradient × input", "attention rollout" or "attention flow";
            "shapley" if None.
        reference: values of masked steps: one of :data:`tsfm_lens.explain.REFERENCES`,
            a dict with one for each role ("target", "past", "known"), or (time +
            horizon,) for each series.
        parts: units of the explanation, such as 6 stretches, "adaptive" (also if None)
            or "components".
        changes: what if the input were another: new values by series or variate of the
            item, such as ``{"temperature": "+5"}``.
        start: first step that changes, counted from the forecast start, or a date; the
            forecast start if None.
        stop: step at which the change ends, itself excluded, or a date; the end of the
            series if None.
        since: an earlier run, from which the change is explained.
        sections: kinds of measurements, in the order of the page.
        options: of the probes, by kind of measurement.
        title: of the page; the model's and the series' names if None.
        sources: where the series come from, in words or as ``bundled:NAME``.
        pdf: print the page of ``out`` to index.pdf as well, in the browser at hand.
        progress: called as (name of the result, done, total) before, within and after
            each. None shows a display in a terminal or notebook.
        left_out: gets the headings of sections that these series do not allow, with the
            reasons.

    Returns:
        Labelled results by kind, their tests corrected together.

    Raises:
        UnknownNameError: no such item, method, reference or section.
        InputError: no section can be computed, the folder cannot be written, or one of
            several items would have to be explained and none is chosen.
        RenderError: a PDF is asked for, and there is no browser.

    Example:
        >>> list(explanation.explain(driven, sections=("forecast", "covariate_use")))
        ['forecast', 'covariate_use']
    """
    check_explanation(method, reference, parts, METHODS)
    if out is not None:
        # a folder that cannot be written is an error before anything runs
        pipeline.find_page(out)
    if pdf:
        # a missing browser is an error before anything runs
        locate_browser()
    missing: dict[str, str] = {} if left_out is None else left_out
    # what the answers below are needs no probe
    made = {"what_if": bool(changes), "forecast_change": since is not None}
    selection = tuple(kind for kind in sections if not made.get(kind))
    kinds = []
    if selection or not any(made.values()):
        selection = select_sections(run.batch, selection)
        kinds = pipeline.select_defined(run.lens, selection, missing)
    is_of_one_item = changes or since is not None or item is not None
    if is_of_one_item or {*kinds} & {*_MASKING_KINDS}:
        # sections of one item are of the first; without such sections nobody needs to
        # choose
        run = pipeline.with_item_first(run, item)
    items = run.batch.rows_by_group()
    answers = Explanation()
    if changes:
        answers["what_if"] = what_if(run, changes, item=0, start=start, stop=stop)
    if since is not None:
        answers["forecast_change"] = explain_change(
            since, run, item=run.batch.groups[0]
        )
    defaults: dict[str, dict[str, Any]] = {
        kind: {"reference": reference} for kind in (*_MASKING_KINDS, "input_effects")
    }
    over_items = defaults["input_effects"]
    # over many items few stretches, and no more masks than the segments need; their
    # number is bounded from above: one more stretch, past and future of each series
    max_segments = _PARTS + 1 + 2 * max(map(len, items.values()))
    over_items["parts"] = _PARTS
    if method in (None, "shapley"):
        over_items["exact"] = _EXACT
        # sampling takes four masks for each segment, at least
        over_items["budget"] = max(2**_EXACT, 4 * max_segments)
    if parts in (None, ADAPTIVE):
        # routes and tests go on with the same stretches; over many items there are few,
        # of equal length
        defaults["input_attribution"]["parts"] = ADAPTIVE
    else:
        for kind, probe_options in defaults.items():
            if kind != "route_faithfulness":
                probe_options["parts"] = parts
    if method is not None:
        defaults["input_attribution"]["method"] = method
        over_items["method"] = method
    # a test takes the options of its explanation, even if that has no section
    arguments = {
        # the caller's options win over those of this function
        kind: {**defaults.get(kind, {}), **(options or {}).get(kind, {})}
        for kind in {**defaults, **dict.fromkeys(kinds)}
    }
    computed = {}
    if kinds:
        computed = pipeline.analyse(
            run, sections=kinds, options=arguments, progress=progress, left_out=missing
        )
    results = Explanation(answers | computed)
    word, reasons = summarize_verdict(results)
    if word:
        # one verdict on all of the page
        page_verdict = {
            "verdict": word,
            "reason": reasons[0],
            "masked": int("deletion_curves" in results),
        }
        for kind in results.keys() & set(_MASKING_KINDS):
            results[kind].attrs |= page_verdict
    _mark_standing(results)
    if "what_if" in results:
        results["what_if"].attrs |= _list_doubts(results)
    if out is not None:
        subject = short_ids(run.batch.ids)[0]
        # a change that was asked for is the answer; else what moved the forecast is
        answers_first = ["what_if", "forecast_change", "input_attribution"]
        if item is None and len(items) > 1:
            subject = f"{len(items)} items"
            answers_first.insert(2, "input_effects")
        lead = [kind for kind in answers_first if kind in results][:1]
        heading = title or _name_page(results, lead, subject)
        page = pipeline.write_page(
            run, results, out, heading, sources, progress, missing, lead
        )
        results.write(page.parent)
        if pdf:
            write_together({page.with_suffix(".pdf"): printed(page.read_bytes())})
    return results


def _mark_standing(results: Mapping[str, xr.Dataset]) -> None:
    """Mark which effects of the inputs pass the test of them, (segment,), 1 or 0."""
    inputs = results.get("input_attribution")
    test = results.get("deletion_curves")
    if inputs is None or test is None or "segment_control_r2" not in test:
        return
    segments = inputs["segment"].values.astype(str)
    if np.array_equal(segments, test["segment"].values.astype(str)):
        stands = np.isin(segments, list_standing(test)).astype(int)
        inputs.coords["stands"] = ("segment", stands)


def _can_be_significant(p_values: xr.DataArray) -> bool:
    facts = p_values.attrs
    return bool(facts["units"] >= facts["needed"])


def _list_doubts(results: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """List what other results cannot tell from zero of the series that a change is of.

    Returns:
        Attributes of the result of kind "what_if": ``unresponsive`` covariates, with
        ``responses``, the number of series; ``undecided`` segments.
    """
    changes = results["what_if"]
    doubts: dict[str, Any] = {}
    use = results.get("covariate_use")
    # with fewer units than the test needs, nothing can be told from zero
    if use is not None and _can_be_significant(use["slope_p"]):
        changed = use["covariate"].isin(changes["change"])
        tested = changed & np.isfinite(use["slope_size"])
        weak = use["covariate"].values[tested & ~use["slope_significant"].astype(bool)]
        if weak.size:
            doubts["unresponsive"] = listed(weak.tolist())
            doubts["responses"] = use.sizes["series"]
    test = results.get("deletion_curves")
    if test is not None:
        undecided = list_undecided(_with_names(test))
        touched = [
            str(name)
            for name, row, start, stop in zip(
                name_segments(test),
                test["row"].values,
                test["start"].values,
                test["stop"].values,
                strict=True,
            )
            if (
                (changes["row"] == row)
                & (changes["start"] < stop)
                & (changes["stop"] > start)
            ).any()
        ]
        if doubtful := [name for name in touched if name in undecided]:
            doubts["undecided"] = listed(doubtful)
    return doubts


def _name_page(
    results: Mapping[str, xr.Dataset], lead: Sequence[str], subject: str
) -> str:
    """Return a page's name: the subject of its answer, of the result in front.

    ``subject`` is what the page is about where no result is in front.
    """
    for kind in lead:
        if kind in ANSWERS:
            return name_scenario(results[kind])
        if kind == "input_effects":
            return f"Forecasts of {subject}: what moved them"
        subject = name_target(results[kind])
    return f"Forecast of {subject}: what moved it"


def select_sections(
    batch: SeriesBatch, sections: Sequence[str] = SECTIONS
) -> tuple[str, ...]:
    """Leave effects over several items out of the usual sections of one item."""
    several = len(set(batch.groups)) > 1 or tuple(sections) != SECTIONS
    return tuple(kind for kind in sections if several or kind != "input_effects")


def summarize_verdict(results: Mapping[str, xr.Dataset]) -> tuple[str, list[str]]:
    """Return the joint verdict of the faithfulness tests among results.

    Returned with it are its sentences; "" and [] without tests.
    """
    tests = [results[kind] for kind in _MASKING_KINDS[2:] if kind in results]
    if tests:
        return verdict(*map(_with_names, tests))
    return "", []


def _with_names(test: xr.Dataset) -> xr.Dataset:
    """Name the segments of a test as figures do."""
    return test.assign_coords(segment=name_segments(test))
