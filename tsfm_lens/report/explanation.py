"""Explanation of one forecast as a page: the inputs that moved it, their routes, and the faithfulness tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.errors import unknown_name
from tsfm_lens.explain.attribution import METHODS
from tsfm_lens.explain.masking import REFERENCES, Reference
from tsfm_lens.explain.scenarios import explain_change, what_if
from tsfm_lens.explain.segments import item_rows
from tsfm_lens.extensions import extensible
from tsfm_lens.models.run import Run
from tsfm_lens.report import pipeline
from tsfm_lens.verdict import verdict
from tsfm_lens.viz.input_attribution import read_inputs

__all__ = ["SECTIONS", "Explanation", "explain"]

_MASKING_KINDS = ("input_attribution", "input_routes", "deletion_curves", "route_faithfulness")
SECTIONS = (*_MASKING_KINDS, "covariate_use", "forecast")
"""Kinds of the measurements that an explanation has unless it is asked for others."""


@extensible
class Explanation(dict[str, xr.Dataset]):
    """Results of an explanation by name; ``plot()`` draws what moved the forecast, ``plot("dots")`` another figure."""

    def __repr__(self) -> str:
        inputs = self.get("input_attribution")
        headline = [] if inputs is None else read_inputs(inputs)[:1]
        return "\n".join([f"Explanation with {', '.join(self)}", *headline])


@saying_once
def explain(
    run: Run,
    out: str | Path | None = None,
    *,
    item: int | str = 0,
    method: str | None = None,
    reference: Reference = "mean",
    changes: Mapping[str, Any] | None = None,
    start: int | str | None = None,
    stop: int | str | None = None,
    since: Run | None = None,
    sections: Sequence[str] = SECTIONS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    title: str | None = None,
    sources: Sequence[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
    left_out: dict[str, str] | None = None,
) -> Explanation:
    """Explain a forecast: effects of the inputs, their routes, faithfulness tests, and the use of covariates.

    Sections that the model or the series do not allow are left out.

    Args:
        run: the forecast; at most one pass of the model.
        out: folder for index.html; nothing is written if None.
        item: whose forecast is explained, by position or name; the use of covariates is measured over all.
        method: of input attribution, see :func:`tsfm_lens.explain.attribute_inputs`; Shapley values if None.
        reference: values of masked steps, see :func:`tsfm_lens.explain.reference_values`.
        changes, start, stop: what if the input were another, see :func:`tsfm_lens.explain.what_if`.
        since: an earlier run, from which the change is explained, see :func:`tsfm_lens.explain.explain_change`.
        sections, options, title, sources, progress, left_out: see :func:`tsfm_lens.report.pipeline.report`.

    Returns:
        Labelled results by name, as :func:`tsfm_lens.report.pipeline.analyse` gives them.

    Raises:
        UnknownNameError: no such item, method, reference or section.
        InputError: no section can be computed, or the folder cannot be written.

    Example:
        >>> list(explanation.explain(driven, sections=("forecast", "covariate_use")))
        ['forecast', 'covariate_use']
    """
    refuse_unknown(method, reference)
    if out is not None:
        pipeline.page_at(out)
    missing: dict[str, str] = {} if left_out is None else left_out
    kinds = pipeline.defined_for(run.lens, sections, missing)
    run = _first(run, item)
    answers = Explanation()
    if changes:
        answers["what_if"] = what_if(run, changes, start=start, stop=stop)
    if since is not None:
        answers["forecast_change"] = explain_change(since, run, item=run.batch.groups[0])
    own: dict[str, dict[str, Any]] = {kind: {"reference": reference} for kind in _MASKING_KINDS}
    if method is not None:
        own["input_attribution"]["method"] = method
    # a test takes the options of its explanation, even if that has no section of its own
    arguments = {
        kind: {**own.get(kind, {}), **(options or {}).get(kind, {})} for kind in {**own, **dict.fromkeys(kinds)}
    }
    parts = pipeline.analyse(run, sections=kinds, options=arguments, progress=progress, left_out=missing)
    results = Explanation(answers | parts)
    word, reasons = judged(results)
    for kind in results.keys() & set(_MASKING_KINDS) if word else ():
        # one verdict on all of the page
        results[kind].attrs |= {"verdict": word, "reason": reasons[0]}
    if out is not None:
        heading = title or f"Explanation of the forecast of {run.batch.ids[0]} by {run.lens.model_id}"
        pipeline.write_page(run, results, out, heading, sources, progress, missing)
    return results


def judged(results: Mapping[str, xr.Dataset]) -> tuple[str, list[str]]:
    """Return the joint verdict of the faithfulness tests among results, and its sentences; "" and [] without tests."""
    tests = [results[kind] for kind in _MASKING_KINDS[2:] if kind in results]
    return verdict(*tests) if tests else ("", [])


def refuse_unknown(method: str | None, reference: Reference) -> None:
    """Refuse unknown names of methods and references, before anything runs."""
    if method is not None and method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if isinstance(reference, str) and reference not in REFERENCES:
        raise unknown_name("reference", reference, REFERENCES)


def _first(run: Run, item: int | str) -> Run:
    """Move the explained item to the front of a run."""
    rows = item_rows(run.batch, item)
    return run.select([*rows, *(row for row in range(len(run.batch)) if row not in rows)])
