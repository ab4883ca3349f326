"""Every measurement passes the checks of all measurements, and each check catches a
probe that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
import xarray as xr

from specimens.marks import unexplained
from tsfm_lens.core import registry
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.models import Run
from tsfm_lens.testing import ProbeCheck, probe_checks

OF_NO_MODEL = ("memory", "figures", "sentences")
"""Checks of what is the same for all models."""


def list_checks() -> Iterator[Any]:
    """All checks; on the second model of a measurement some by `make exhaustive`: how
    many series run at once, which the engine decides for all measurements alike, and
    what is drawn, since figures know no model.
    """
    first = {}
    for check in probe_checks():
        kind, model = check.trial.entry.kind, check.trial.model
        again = first.setdefault(kind, model) != model and check.name in OF_NO_MODEL
        marks = [pytest.mark.exhaustive] if again else []
        yield pytest.param(check, marks=marks, id=str(check))


@pytest.mark.parametrize("check", tuple(list_checks()))
def test_every_measurement_passes(check: ProbeCheck) -> None:
    check()
    if check.name == "figures":
        marks = [
            mark for panel in check.trial.panels for mark in unexplained(panel.figure)
        ]
        assert not marks


def spread(run: Run) -> xr.Dataset:
    """Width of each forecast, in that of its context."""
    data = run.dataset()
    widths = np.ptp(run.point, axis=-1) / [np.ptp(value) for value in run.batch.values]
    data["spread"] = ("series", widths)
    data.attrs = run.describe("toy", "Width of forecasts", "")
    data["of_all"] = data["spread"].expand_dims("member")
    return add_estimates(data, "of_all", floor=0.0)


def without_title(run: Run) -> xr.Dataset:
    return spread(run).assign_attrs(title="")


def by_position(run: Run) -> xr.Dataset:
    data = spread(run)
    return data.assign(spread=data["spread"] * np.arange(1, 1 + len(run.batch)))


def in_data_units(run: Run) -> xr.Dataset:
    data = spread(run)
    data["of_all"] = ("series", np.ptp(run.point, axis=-1))
    return add_estimates(
        data.assign(of_all=data["of_all"].expand_dims("member")), "of_all", floor=0.0
    )


def without_contexts(run: Run) -> xr.Dataset:
    return add_estimates(spread(run).drop_vars("context"), "of_all", floor=0.0)


def at_once(run: Run) -> xr.Dataset:
    with torch.no_grad():
        run.lens.adapter.run(run.encoded.inputs)
    return spread(run)


def of_targets(run: Run) -> xr.Dataset:
    targets = run.lens.run(run.batch.targets(), run.horizon)
    data = spread(targets)
    return data.assign_attrs(run.describe("toy", "Width of forecasts", ""))


def bars(data: xr.Dataset) -> go.Figure:
    """Width of each forecast."""
    return go.Figure(go.Bar(x=data["series"].values, y=data["spread"].values))


def nothing(data: xr.Dataset) -> go.Figure:
    """Nothing."""
    return go.Figure()


BROKEN = {
    "": (spread, {}),
    "labels": (without_title, {}),
    "figures": (spread, {"draw": nothing}),
    "sentences": (spread, {"sentences": lambda data: ["This ends in no point"]}),
    "order": (by_position, {}),
    "units": (in_data_units, {}),
    "copies": (without_contexts, {}),
    "memory": (at_once, {}),
    "twins": (spread, {"has_twins": False}),
    "refusal": (spread, {"needs": "covariates"}),
    "covariates": (of_targets, {}),
}


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Declares a probe and its figure for one test."""
    registry.measurements()
    for name in ("_MEASUREMENTS", "_FIGURES"):
        table = getattr(registry, name)
        monkeypatch.setattr(registry, name, table.copy())

    def register(
        function: Callable[[Run], xr.Dataset],
        draw: Any = bars,
        sentences: Any = lambda data: ["This ends in a point."],
        has_twins: bool = True,
        needs: str = "",
    ) -> None:
        def toy(run: Run) -> xr.Dataset:
            return function(run)

        compute = registry.probe(needs=needs)(toy)

        def forgetful(run: Run) -> xr.Dataset:
            return compute(replace(run, n_twins=0))

        if not has_twins:
            registry.find("toy").function = forgetful
        registry.figure("toy", table=["spread"], sentences=sentences)(draw)

    return register


@pytest.mark.parametrize("broken", BROKEN)
def test_wrong_probes_fail_their_check(
    broken: str, declare: Callable[..., None]
) -> None:
    function, options = BROKEN[broken]
    declare(function, **options)
    failed = set()
    # one without covariates, and one that takes them; a path of tokens takes long
    for check in probe_checks("toy", ("bolt-nano", "chronos2-nano")):
        try:
            check()
        except AssertionError:
            failed.add(check.name)
    assert failed == ({broken} if broken else set())


def test_failed_checks_name_probe_and_model(declare: Callable[..., None]) -> None:
    declare(without_title)
    check = next(probe_checks("toy"))
    with pytest.raises(AssertionError, match="'title'") as failed:
        check()
    assert failed.value.__notes__ == ["toy-bolt-nano-labels"]
