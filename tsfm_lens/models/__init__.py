"""Native models behind one interface: lenses, runs and forecasts.

Start with :func:`load`, which opens a model as a :class:`Lens`; ``lens.run`` makes a
:class:`Run`, and ``lens.forecast`` a :class:`Forecast`. A new model is added by
:func:`register`, which takes an :class:`Architecture` with its :class:`Adapter`.
"""

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
