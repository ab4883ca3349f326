"""Structured matrices, and attention that scores with them.

Kuang et al. (2025), "Customizing the Inductive Biases of Softmax Attention using
Structured Matrices". Read :class:`MultiLevelLowRank` first, then :class:`ScoringForm`.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.studies.structured.counts import *
from tsfm_lens.studies.structured.forms import *
from tsfm_lens.studies.structured.matrices import *
from tsfm_lens.studies.structured.models import *
from tsfm_lens.studies.structured.scores import *
from tsfm_lens.studies.structured.training import *
from tsfm_lens.studies.structured.wiring import *

__all__ = _public_names(globals())
