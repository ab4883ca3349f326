"""A result of every kind that the registry draws, in four cases that try the room for words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

import planted
from specimens.examples import drawn_in_examples
from tsfm_lens import load
from tsfm_lens.data import as_series, bundled
from tsfm_lens.errors import InputError
from tsfm_lens.registry import find, measurements
from tsfm_lens.results import Results

CASES = ("plain", "long", "one", "forty")
# tokens; quantiles; covariates; and what no run makes
SOURCES = ("chronos-nano", "bolt-nano", "chronos2-nano", "elsewhere")
NAME = "Übertragene Wirkleistung am Knoten Köln {}"
UNIT = "megawatt hours per square metre"
LEVEL = -1e6
MANY = 40
_HORIZON = 12
# what users name themselves
_NAMED = ("model", "run", "arm")


def specimens(source: str, case: str) -> dict[str, Any]:
    """Results by name; cases that do not change a result leave it out."""
    if source == "elsewhere":
        return _elsewhere(case)
    if case in ("plain", "long"):
        return measured(source, case)
    # the series of an explained item are its variates, of which none can be taken out or shown twice
    several = {
        name: ds
        for name, ds in measured(source, "long").items()
        if ds.sizes.get("series", 0) > 1 and "segment" not in ds.dims
    }
    return {name: ds.isel(series=[0]) if case == "one" else _tiled(ds) for name, ds in several.items()}


@cache
def measured(model: str, case: str) -> dict[str, xr.Dataset]:
    """Everything that is measured on a model, by kind."""
    work, found = _work(model, case), {}
    for kind, each in measurements().items():
        if each.of_run:
            try:
                found[kind] = work[kind]
            except InputError:
                # of other models, or of series with a season or with covariates
                continue
    return found


def _work(model: str, case: str) -> Results:
    long = case == "long"
    if model == "chronos2-nano":
        cause, name = np.sin(np.arange(80) / 5), NAME.format("Süd") if long else "cause"
        target = (1 + cause[:72]) * (LEVEL if long else 1)
        entry = {"target": target, "past_covariates": {name: cause[:72]}, "future_covariates": {name: cause[72:]}}
        return Results(load(model).run(as_series([entry]), 8))
    batch = bundled("co2", "elnino")
    if long:
        ids = tuple(NAME.format(place) for place in range(len(batch.values)))
        values = tuple(LEVEL / abs(np.nanmean(each)) * each for each in batch.values)
        batch = replace(batch, values=values, ids=ids, groups=ids, units=(UNIT,) * len(ids))
    few = 4 if model == "chronos-nano" else None
    return Results(load(model).run(batch, _HORIZON, holdout=True, num_samples=few))


def _tiled(ds: xr.Dataset) -> xr.Dataset:
    """The same series again and again, each under a name of its own."""
    many = ds.isel(series=np.arange(MANY) % ds.sizes["series"])
    return many.assign_coords(series=[NAME.format(place) for place in range(MANY)])


@cache
def _elsewhere(case: str) -> dict[str, Any]:
    models = [NAME.format(place) for place in range({"one": 1, "forty": 12}.get(case, 2))]
    # planted sweeps draw one number per dataset
    swept = planted.sweep(
        ["model a", "model b"] if case == "plain" else models,
        MANY if case == "forty" else 4,
        name="data {}".format if case == "plain" else NAME.format,
    )
    tables = {str(table.attrs["kind"]): table for table in swept.values()}
    if case in ("one", "forty"):
        return tables
    results = [*_examples(), *_records()]
    return tables | {
        f"{ds.attrs['kind']} {place}": _renamed(ds) if case == "long" else ds for place, ds in enumerate(results)
    }


def _records() -> list[xr.Dataset]:
    """The records that studies ship, where studies are installed."""
    if find_spec("tsfm_lens.studies") is None:
        return []
    experiments = import_module("tsfm_lens.studies.experiments")
    return [experiments.record(name) for name in experiments.record_names()]


@cache
def _examples() -> list[xr.Dataset]:
    return drawn_in_examples()


def _renamed(ds: xr.Dataset) -> xr.Dataset:
    for dim in _NAMED:
        if dim in ds.coords and ds[dim].dims == (dim,) and ds[dim].dtype.kind in "UO":
            ds = ds.assign_coords({dim: [f"{word} {NAME[:28]}" for word in ds[dim].values]})
    return ds.assign_attrs(model=NAME.format(ds.attrs["model"])) if "model" in ds.attrs else ds


def kind_of(name: str) -> str:
    """The kind of a result by its name in :func:`specimens`."""
    return name.split()[0]


def figures_of(name: str, result: Any, beside: dict[str, Any]) -> Iterator[tuple[str, go.Figure]]:
    """All figures that are drawn of a result: the panels of a report, then each renderer by its name."""
    measurement = find(kind_of(name))
    for place, panel in enumerate(measurement.draw_panels(result)):
        yield f"panel {place}", panel.figure
    for figure in measurement.figures:
        if all(kind in beside for kind in figure.beside):
            try:
                yield figure.name, figure.draw(result, *(beside[kind] for kind in figure.beside))
            except InputError:
                # of a result that lacks what this figure shows; panels leave such out by themselves
                continue
