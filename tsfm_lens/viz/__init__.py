"""Figures of labelled results: a Dataset in, a plotly figure out.

Read :func:`plot` first, which draws a run, a forecast or any result. No figure runs a
model.
"""

from typing import TYPE_CHECKING, Any

from tsfm_lens.core.extensions import export
from tsfm_lens.core.foreign_words import refuse_name
from tsfm_lens.core.registry import figures

# exports are found at run time; these lines are for type checkers and editors alone
if TYPE_CHECKING:
    from tsfm_lens.viz.attention import *
    from tsfm_lens.viz.attention_sinks import *
    from tsfm_lens.viz.attribution import *
    from tsfm_lens.viz.circuit_curve import *
    from tsfm_lens.viz.circuits import *
    from tsfm_lens.viz.compare_models import *
    from tsfm_lens.viz.compression import *
    from tsfm_lens.viz.dark import *
    from tsfm_lens.viz.data import *
    from tsfm_lens.viz.direction import *
    from tsfm_lens.viz.facets import *
    from tsfm_lens.viz.faithfulness import *
    from tsfm_lens.viz.forecast import *
    from tsfm_lens.viz.induction import *
    from tsfm_lens.viz.input_attribution import *
    from tsfm_lens.viz.input_effects import *
    from tsfm_lens.viz.input_routes import *
    from tsfm_lens.viz.learned_scores import *
    from tsfm_lens.viz.lens_logits import *
    from tsfm_lens.viz.lines_of_thought import *
    from tsfm_lens.viz.logit_lens import *
    from tsfm_lens.viz.patching import *
    from tsfm_lens.viz.plot import *
    from tsfm_lens.viz.printing import *
    from tsfm_lens.viz.recipes import *
    from tsfm_lens.viz.repeated_motif import *
    from tsfm_lens.viz.rollout import *
    from tsfm_lens.viz.saving import *
    from tsfm_lens.viz.scenarios import *
    from tsfm_lens.viz.sweep_costs import *
    from tsfm_lens.viz.training import *
    from tsfm_lens.viz.weights import *
    from tsfm_lens.viz.zero_ablation import *

__all__ = export(__name__)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # a figure that is drawn by the dimensions of a result is no function of its own
    if not name.startswith("_") and name in figures():
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: result.plot({name!r})"
            " draws this figure"
        )
    return refuse_name(__name__, name)
