"""Small trainable models and controlled experiments of the literature.

:mod:`tsfm_lens.studies.experiments.running` trains one model from a configuration,
:mod:`tsfm_lens.studies.experiments.records` gathers what it did, and loads the records
of many, which the queue trains (:mod:`tsfm_lens.studies.queue`). The models are
packages of their own, ``samformer`` and ``structured``.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.studies import samformer, structured
from tsfm_lens.studies.experiments.grids import *
from tsfm_lens.studies.experiments.records import *
from tsfm_lens.studies.experiments.running import *
from tsfm_lens.studies.train_config import *

__all__ = [
    "samformer",
    "structured",
    *_public_names(globals()),
]
