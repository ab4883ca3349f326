"""Low-rank compression and pruning of models, and their effect on forecasts."""
# ruff: noqa: F403

from typing import TYPE_CHECKING

from tsfm_lens.extensions import export

# exports are found at run time; these lines are for type checkers and editors alone
if TYPE_CHECKING:
    from tsfm_lens.compress.checkpoint import *
    from tsfm_lens.compress.healing import *
    from tsfm_lens.compress.layers import *
    from tsfm_lens.compress.matrices import *
    from tsfm_lens.compress.measure import *
    from tsfm_lens.compress.methods import *
    from tsfm_lens.compress.prune import *
    from tsfm_lens.compress.schedule import *

__all__ = export(__name__)
