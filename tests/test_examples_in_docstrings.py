"""Every public function and method of Lens and Run has an example, which is true.

In examples ``lens`` is the embedded ``chronos-nano``, ``run`` its forecast of co2 over
12 steps with four sample paths, ``corrupted`` that of the same values half a year
later, ``driven`` one of ``chronos2-nano`` with a covariate, ``results`` what
``pipeline.analyse`` makes of ``run``, by kind, ``tables`` the results of a sweep, and
``folder`` an empty folder; packages of the package go by their names.
"""

from __future__ import annotations

import doctest
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import planted
import tsfm_lens
from tsfm_lens.core.estimates import Result
from tsfm_lens.core.registry import measurements
from tsfm_lens.core.results import Results
from tsfm_lens.data import bundled
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.residual import Decomposed
from tsfm_lens.models import Forecast, Lens
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.run import Run

PACKAGES = (
    "",
    "ablation",
    "compress",
    "core.ranks",
    "data",
    "explain",
    "hooks",
    "models",
    "probes",
    "report",
    "report.pipeline",
    "report.explanation",
    "report.explore",
    "sweep",
    "testing",
    "training",
    "viz",
    "zoo",
)
# packages of the studies, where studies are installed
STUDIES = (
    *(
        "studies.experiments",
        "studies.experiments.figures",
        "studies.rank_theory",
        "studies.rank_theory.figures",
    ),
    *(
        "studies.rank_theory.figures_models",
        "studies.recipes",
    ),
    *(
        "studies.recipes.figures",
        "studies.samformer",
        "studies.structured",
    ),
)
if find_spec("tsfm_lens.studies") is not None:
    PACKAGES += STUDIES


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for package in PACKAGES:
        module = import_module(f"tsfm_lens.{package}" if package else "tsfm_lens")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                yield f"{package or 'tsfm_lens'}.{name}", thing


def public_methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, thing in vars(owner).items():
        if inspect.isfunction(thing) and not name.startswith("_"):
            yield f"{owner.__name__}.{name}", thing


FUNCTIONS = dict(public_functions())
# every one has an example; those of other classes may have one
METHODS = dict(pair for owner in (Lens, Run) for pair in public_methods(owner))
OTHER_METHODS = {
    name: method
    for owner in (LensBase, Forecast, Result, Activations, Decomposed)
    for name, method in public_methods(owner)
    if ">>>" in (method.__doc__ or "")
}
# the gallery shows the code of these
DRAWN_OF_RUNS = {
    f"viz.{figure.name}"
    for entry in measurements().values()
    for figure in entry.figures
    if entry.of_run or entry.theme == "Sweeps"
}


class Computed(dict[str, xr.Dataset]):
    """Each measured when it is first asked for."""

    def __init__(self, run: Run) -> None:
        self.work = Results(run)

    def __missing__(self, kind: str) -> xr.Dataset:
        return self.work[kind]


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    lens = tsfm_lens.load("chronos-nano")
    packages = {
        package.rpartition(".")[2]: import_module(f"tsfm_lens.{package}")
        for package in PACKAGES
        if package
    }
    run = lens.run(bundled("co2"), 12, holdout=True, num_samples=4)
    turned = replace(run.batch, values=(np.roll(run.batch.values[0], 6),))
    pair = {"run": run, "corrupted": lens.run(turned, 12, num_samples=4)}
    cause = np.sin(np.arange(80) / 5)
    entry = {
        "target": 1 + cause[:72],
        "past_covariates": {"cause": cause[:72]},
        "future_covariates": {"cause": cause[72:]},
    }
    pair["driven"] = tsfm_lens.load("chronos2-nano").run([entry], 8)
    made = {"lens": lens, **pair, "results": Computed(run), "tables": planted.sweep()}
    return {
        "tsfm_lens": tsfm_lens,
        **made,
        "np": np,
        "pd": pd,
        "torch": torch,
        "xr": xr,
        **packages,
    }


EXAMPLES = FUNCTIONS | METHODS | OTHER_METHODS


@pytest.mark.parametrize(("name", "function"), EXAMPLES.items(), ids=EXAMPLES)
def test_the_example_is_true(
    name: str, function: Callable[..., Any], names: dict[str, Any], tmp_path: Path
) -> None:
    # the figures of a study go by the name of their module
    known = {**names, "folder": tmp_path, "figures": sys.modules[function.__module__]}
    examples = doctest.DocTestFinder(recurse=False).find(function, name, globs=known)
    assert [test for test in examples if test.examples] or name in DRAWN_OF_RUNS, (
        f"{name} has no example"
    )
    for test in examples:
        found = doctest.DocTestRunner(
            optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
        ).run(test)
        assert found.failed == 0
