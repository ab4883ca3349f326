"""tsfm-lens: see inside a time-series foundation model, change one thing, know what it did to the forecast.

Every name here is loaded on first use, so importing the package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tsfm_lens import verbs  # noqa: F401  # attaches methods to classes below
from tsfm_lens.registry import VERSION as __version__

_HOME = {
    "Activations": "tsfm_lens.hooks",
    "Component": "tsfm_lens.hooks",
    "EditPattern": "tsfm_lens.hooks",
    "Forecast": "tsfm_lens.models",
    "Lens": "tsfm_lens.models",
    "Mean": "tsfm_lens.hooks",
    "Noise": "tsfm_lens.hooks",
    "PatchFrom": "tsfm_lens.hooks",
    "Resample": "tsfm_lens.hooks",
    "Run": "tsfm_lens.models",
    "SeriesBatch": "tsfm_lens.data",
    "Steer": "tsfm_lens.hooks",
    "Zero": "tsfm_lens.hooks",
    "as_series": "tsfm_lens.data",
    "bundled": "tsfm_lens.data",
    "load": "tsfm_lens.models",
}

_PACKAGES = (
    *(
        "ablation",
        "compress",
        "data",
        "errors",
        "explain",
        "explore",
        "figures",
        "hooks",
        "models",
        "pipeline",
        "probes",
        "ranks",
        "registry",
        "report",
        "results",
        "serve",
        "stats",
        "studies",
        "sweep",
    ),
    *("testing", "training", "viz", "zoo"),
)

__all__ = [
    "Activations",
    "Component",
    "EditPattern",
    "Forecast",
    "Lens",
    "Mean",
    "Noise",
    "PatchFrom",
    "Resample",
    "Run",
    "SeriesBatch",
    "Steer",
    "Zero",
    "__version__",
    "as_series",
    "bundled",
    "load",
]


if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch, as_series, bundled
    from tsfm_lens.hooks import Activations, Component, EditPattern, Mean, Noise, PatchFrom, Resample, Steer, Zero
    from tsfm_lens.models import Forecast, Lens, Run, load


def __getattr__(name: str) -> Any:
    """Import a public name or a package on first use."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return import_module(f"tsfm_lens.{name}")
    raise AttributeError(f"module 'tsfm_lens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
