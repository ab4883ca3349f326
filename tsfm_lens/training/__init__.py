"""Training: one loop, sharpness-aware minimisation, and a watch on any training."""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.training.loop import *
from tsfm_lens.training.sam import *
from tsfm_lens.training.state import *
from tsfm_lens.training.watch.attention import *
from tsfm_lens.training.watch.callback import *
from tsfm_lens.training.watch.sharpness import *

__all__ = _public_names(globals())
