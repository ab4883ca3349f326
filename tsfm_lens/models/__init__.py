"""Models behind the lens."""

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
