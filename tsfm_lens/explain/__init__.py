"""Explanations of a forecast: its inputs, their routes, and tests of both.

Read :func:`tsfm_lens.explain.input_attribution` first; what it masks is cut by
:func:`tsfm_lens.explain.segments` and replaced by
:func:`tsfm_lens.explain.reference_values`.
"""

from typing import TYPE_CHECKING

from tsfm_lens.core.extensions import export
from tsfm_lens.probes.given import check_arguments as _check_arguments

# exports are found at run time; these lines are for type checkers and editors alone
if TYPE_CHECKING:
    from tsfm_lens.explain.attribution import *
    from tsfm_lens.explain.covariate_use import *
    from tsfm_lens.explain.faithfulness import *
    from tsfm_lens.explain.masking import *
    from tsfm_lens.explain.over_items import *
    from tsfm_lens.explain.parts import *
    from tsfm_lens.explain.routes import *
    from tsfm_lens.explain.scenarios import *
    from tsfm_lens.explain.segments import *
    from tsfm_lens.explain.values import *

__all__ = export(__name__)

_check_arguments(__name__)


def __dir__() -> list[str]:
    return __all__
