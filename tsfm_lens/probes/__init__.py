"""Probes: functions from a run, or from a model, to a labelled dataset.

:mod:`tsfm_lens.core.registry` lists them as measurements; figures are in
:mod:`tsfm_lens.viz`.
"""

from typing import TYPE_CHECKING

from tsfm_lens.core.extensions import export
from tsfm_lens.probes.given import check_arguments as _check_arguments

# exports are found at run time; these lines are for type checkers and editors alone
if TYPE_CHECKING:
    from tsfm_lens.probes.attention import *
    from tsfm_lens.probes.attention_sinks import *
    from tsfm_lens.probes.attribution import *
    from tsfm_lens.probes.circuit_curve import *
    from tsfm_lens.probes.circuits import *
    from tsfm_lens.probes.compare_models import *
    from tsfm_lens.probes.direction import *
    from tsfm_lens.probes.effects import *
    from tsfm_lens.probes.forecast import *
    from tsfm_lens.probes.head_states import *
    from tsfm_lens.probes.induction import *
    from tsfm_lens.probes.kernel_regression import *
    from tsfm_lens.probes.learned_scores import *
    from tsfm_lens.probes.lines_of_thought import *
    from tsfm_lens.probes.logit_lens import *
    from tsfm_lens.probes.parroting import *
    from tsfm_lens.probes.patching import *
    from tsfm_lens.probes.path_patching import *
    from tsfm_lens.probes.recipes import *
    from tsfm_lens.probes.repeated_motif import *
    from tsfm_lens.probes.rollout import *
    from tsfm_lens.probes.similarity import *
    from tsfm_lens.probes.stream_ranks import *
    from tsfm_lens.probes.tuned_weights import *
    from tsfm_lens.probes.weight_effects import *
    from tsfm_lens.probes.weights import *
    from tsfm_lens.probes.zero_ablation import *

__all__ = export(__name__)

# after the exports: the check wraps every function that the package exports
_check_arguments(__name__)


def __dir__() -> list[str]:
    return __all__
