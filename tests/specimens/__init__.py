"""A result of every kind that the registry draws."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

import planted
from specimens.examples import drawn_in_examples
from tsfm_lens import load
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import find, measurements
from tsfm_lens.core.results import Results
from tsfm_lens.data import as_series, bundled

# tokens; quantiles; covariates; and what no run makes
SOURCES = ("chronos-nano", "bolt-nano", "chronos2-nano", "elsewhere")


def specimens(source: str) -> dict[str, Any]:
    """Results by name: everything that is measured on a model by kind, or what no run
    makes.
    """
    if source == "elsewhere":
        # planted sweeps draw one number per dataset
        swept = planted.sweep(["model a", "model b"], 4, name="data {}".format)
        results = [*drawn_in_examples(), *_records()]
        numbered = {
            f"{ds.attrs['kind']} {position}": ds for position, ds in enumerate(results)
        }
        return {str(table.attrs["kind"]): table for table in swept.values()} | numbered
    work = _work(source)
    found = {}
    for kind, measurement in measurements().items():
        if measurement.of_run:
            try:
                found[kind] = work[kind]
            except InputError:
                # of other models, or of series with a season or with covariates
                continue
    return found


def _work(model: str) -> Results:
    if model == "chronos2-nano":
        cause = np.sin(np.arange(80) / 5)
        entry = {"target": 1 + cause[:72], "past_covariates": {"cause": cause[:72]}}
        return Results(
            load(model).run(
                as_series([entry | {"future_covariates": {"cause": cause[72:]}}]), 8
            )
        )
    few = None
    if model == "chronos-nano":
        few = 4
    run = load(model).run(bundled("co2", "elnino"), 12, holdout=True, num_samples=few)
    return Results(run, {"logit_lens": {"logits": True}} if few else None)


def _records() -> list[xr.Dataset]:
    """A record of each kind that studies ship, where studies are installed."""
    if find_spec("tsfm_lens.studies") is None:
        return []
    experiments = import_module("tsfm_lens.studies.experiments")
    records = map(experiments.record, experiments.record_names())
    kinds = {data.attrs["kind"]: data for data in records if "kind" in data.attrs}
    return list(kinds.values())


def find_kind(name: str) -> str:
    """The kind of a result by its name in :func:`specimens`."""
    return name.split()[0]


def draw_all(
    name: str, result: Any, beside: dict[str, Any]
) -> Iterator[tuple[str, go.Figure]]:
    """All figures that are drawn of a result: the panels of a report, then each
    renderer by its name.
    """
    measurement = find(find_kind(name))
    for position, panel in enumerate(measurement.draw_panels(result)):
        yield f"panel {position}", panel.figure
    for figure in measurement.figures:
        if all(kind in beside for kind in figure.beside):
            try:
                yield (
                    figure.name,
                    figure.draw(result, *(beside[kind] for kind in figure.beside)),
                )
            except InputError:
                # of a result that lacks what this figure shows; panels leave such out
                # by themselves
                continue
