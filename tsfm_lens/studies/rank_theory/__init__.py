"""Theory as code: ranks, embeddings, constructions and bounds on attention.

Everything is in numpy and float64, without any model, except
:mod:`tsfm_lens.studies.rank_theory.of_models`, which measures models.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.studies.rank_theory.channel_attention import *
from tsfm_lens.studies.rank_theory.compression import *
from tsfm_lens.studies.rank_theory.constructions import *
from tsfm_lens.studies.rank_theory.embeddings import *
from tsfm_lens.studies.rank_theory.experiments import *
from tsfm_lens.studies.rank_theory.of_models import *
from tsfm_lens.studies.rank_theory.schedules import *

__all__ = _public_names(globals())
