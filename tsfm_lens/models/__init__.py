"""Native models behind one interface: lenses, runs and forecasts.

Start with :func:`load`, which opens a model as a :class:`Lens`; ``lens.run`` makes a
:class:`Run`, and ``lens.forecast`` a :class:`Forecast`. A new model is added by
:func:`register`, which takes an :class:`Architecture` with its :class:`Adapter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsfm_lens.core.extensions import import_on_use

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

# cards, and places of checkpoints, need no torch
__getattr__ = import_on_use(
    __name__,
    {
        "adapter": ("Adapter",),
        "architecture": ("Architecture", "Encoded", "architectures", "register"),
        "forecast": ("Forecast",),
        "lens": ("Lens",),
        "opening": ("load",),
        "run": ("Run",),
    },
)
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
