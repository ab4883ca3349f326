"""See inside a time-series foundation model, and test what changes its forecast.

Start with :func:`load`, which opens a model as a :class:`Lens`; ``lens.run(series)``
gives a :class:`Run`, whose methods explain the forecast. Every name here is loaded on
first use, so importing the package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from tsfm_lens import verbs  # noqa: F401  # adds methods to Lens, Run and results
from tsfm_lens.core import VERSION as __version__

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch, as_series, bundled, windows
    from tsfm_lens.explain import explain_change
    from tsfm_lens.hooks import (
        Activations,
        Component,
        EditPattern,
        Mean,
        Noise,
        PatchFrom,
        Resample,
        Steer,
        Zero,
    )
    from tsfm_lens.models import Forecast, Lens, Run, load
    from tsfm_lens.viz import plot

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
    "explain_change",
    "load",
    "plot",
    "windows",
]
# package of each public name: those not named here are in ``hooks``. ``__version__`` is
# defined above, so that no look-up of it comes here.
_HOME = dict.fromkeys(__all__, "tsfm_lens.hooks") | {
    **dict.fromkeys(
        ("SeriesBatch", "as_series", "bundled", "windows"), "tsfm_lens.data"
    ),
    **dict.fromkeys(("Forecast", "Lens", "Run", "load"), "tsfm_lens.models"),
    "explain_change": "tsfm_lens.explain",
    "plot": "tsfm_lens.viz",
}


def __getattr__(name: str) -> Any:
    """Import a public name or a package on first use."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        # from now on Python finds the name without this function
        globals()[name] = value
        return value
    # Python and notebooks ask for private names such as ``__wrapped__`` all the time:
    # these are refused without a search for a module
    if not name.startswith("_") and find_spec(f"tsfm_lens.{name}"):
        return import_module(f"tsfm_lens.{name}")
    # loaded only where an error is on its way
    from tsfm_lens.core.foreign_words import refuse_name

    return refuse_name(__name__, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(module.name for module in iter_modules(__path__))])
