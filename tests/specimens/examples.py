"""What the examples of renderers draw: results that are made of no run."""

from __future__ import annotations

import doctest
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xarray as xr

import tsfm_lens
from tsfm_lens.core import registry

_PACKAGES = ("probes", "training", "zoo")
_STUDIES = ("experiments", "rank_theory", "recipes")


def drawn_in_examples() -> list[xr.Dataset]:
    """The results that docstrings draw of measurements that no run gives, each once."""
    found = []

    def recorded(name: str) -> Any:
        def draw(ds: Any, *args: Any, **options: Any) -> Any:
            if isinstance(ds, xr.Dataset):
                found.append(ds)
            return renderers[name](ds, *args, **options)

        return draw

    renderers = {
        figure.name: figure.function
        for measurement in registry.measurements().values()
        if not measurement.of_run and measurement.theme != "Sweeps"
        for figure in measurement.figures
    }
    recorder = SimpleNamespace(**{name: recorded(name) for name in renderers})
    known = {package: import_module(f"tsfm_lens.{package}") for package in _PACKAGES}
    if find_spec("tsfm_lens.studies") is not None:
        known |= {
            study: import_module(f"tsfm_lens.studies.{study}") for study in _STUDIES
        }
    known |= {
        "viz": recorder,
        "figures": recorder,
        "np": np,
        "torch": torch,
        "lens": tsfm_lens.load("chronos-nano"),
    }
    finder = doctest.DocTestFinder(recurse=False)
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(renderers):
            for test in finder.find(
                renderers[name], name, globs=known | {"folder": Path(folder)}
            ):
                doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None)
    return [ds for ds in found if ds.attrs.get("kind")]
