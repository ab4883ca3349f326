"""Low-rank compression and pruning of models, and their effect on forecasts.

:func:`compressed` chooses ranks and truncates matrices, :func:`prune` removes heads and
MLPs, :func:`quality` and :func:`cost` compare the result with the full model, and
:func:`save_compressed` writes it.
"""

# ruff: noqa: F403
from tsfm_lens.compress.checkpoint import *
from tsfm_lens.compress.healing import *
from tsfm_lens.compress.layers import *
from tsfm_lens.compress.matrices import *
from tsfm_lens.compress.measure import *
from tsfm_lens.compress.methods import *
from tsfm_lens.compress.prune import *
from tsfm_lens.compress.schedule import *
from tsfm_lens.core.extensions import public_names as _public_names

__all__ = _public_names(globals())


def __dir__() -> list[str]:
    return __all__
