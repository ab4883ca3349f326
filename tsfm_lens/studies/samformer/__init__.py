"""SAMformer: a transformer over channels, and sharpness-aware minimisation.

Ilbert et al. (2024), "SAMformer: Unlocking the Potential of Transformers in Time Series
Forecasting with Sharpness-Aware Minimization and Channel-Wise Attention". Without
sharpness-aware minimisation such a transformer trains to sharp minima. The optimiser is
:class:`tsfm_lens.training.SAM`. Read :class:`ChannelTransformer` first.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.studies.samformer.models import *
from tsfm_lens.studies.samformer.tasks import *
from tsfm_lens.studies.samformer.wiring import *

__all__ = _public_names(globals())
