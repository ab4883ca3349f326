"""Models whose mechanism is known, because their weights are set and not trained.

Read :func:`plant` first. Each model comes with a :class:`Card`, the ground truth that
measurements are scored on.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.zoo.planted.card import *
from tsfm_lens.zoo.planted.draft import *
from tsfm_lens.zoo.planted.large import *
from tsfm_lens.zoo.planted.planting import *
from tsfm_lens.zoo.planted.rules import *
from tsfm_lens.zoo.planted.variants import *

__all__ = _public_names(globals())
