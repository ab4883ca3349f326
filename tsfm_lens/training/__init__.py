"""Training: one loop, sharpness-aware minimisation, and a watch on any training.

:class:`Training` runs the loop and resumes it, :class:`SAM` is an optimiser for it, and
:class:`Watch` measures a model while this or any other loop trains it.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.training.loop import *
from tsfm_lens.training.sam import *
from tsfm_lens.training.state import *
from tsfm_lens.training.watch.attention import *
from tsfm_lens.training.watch.callback import *
from tsfm_lens.training.watch.sharpness import *

__all__ = _public_names(globals())


def __dir__() -> list[str]:
    return __all__
