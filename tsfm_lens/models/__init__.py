"""Native models behind one interface: lenses, runs and forecasts.

Start with :func:`load`, which opens a model as a :class:`Lens`; ``lens.run`` makes a
:class:`Run`, and ``lens.forecast`` a :class:`Forecast`. A new model is added by
:func:`register`, which takes an :class:`Architecture` with its :class:`Adapter`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsfm_lens.models.adapter import Adapter
    from tsfm_lens.models.architecture import (
        Architecture,
        Encoded,
        architectures,
        register,
    )
    from tsfm_lens.models.forecast import Forecast
    from tsfm_lens.models.lens import Lens
    from tsfm_lens.models.opening import load
    from tsfm_lens.models.run import Run

# imported at first use: cards, and places of checkpoints, need no torch
_HOME = {
    **dict.fromkeys(
        ("Architecture", "Encoded", "architectures", "register"), "architecture"
    ),
    "Adapter": "adapter",
    "Forecast": "forecast",
    "Lens": "lens",
    "Run": "run",
    "load": "opening",
}

__all__ = [
    "Adapter",
    "Architecture",
    "Encoded",
    "Forecast",
    "Lens",
    "Run",
    "architectures",
    "load",
    "register",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
