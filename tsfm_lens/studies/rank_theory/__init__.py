"""Theory as code: ranks, embeddings, constructions and bounds on attention, in numpy and float64, without any model."""

# ruff: noqa: F403
import inspect

from tsfm_lens.studies.rank_theory.channel_attention import *
from tsfm_lens.studies.rank_theory.compression import *
from tsfm_lens.studies.rank_theory.constructions import *
from tsfm_lens.studies.rank_theory.embeddings import *
from tsfm_lens.studies.rank_theory.experiments import *
from tsfm_lens.studies.rank_theory.experiments_bounds import *
from tsfm_lens.studies.rank_theory.of_models import *
from tsfm_lens.studies.rank_theory.structure import *

__all__ = sorted(name for name, each in dict(globals()).items() if name[0] != "_" and not inspect.ismodule(each))
