"""Register the measurements and figures of the studies with the core; an entry point names this module."""

from tsfm_lens.figures.named import add_figures
from tsfm_lens.studies._shim import add
from tsfm_lens.studies.experiments.measurements import MEASUREMENTS as EXPERIMENTS
from tsfm_lens.studies.papers.figures import ELSEWHERE, ENTRIES
from tsfm_lens.studies.rank_theory.measurements import MEASUREMENTS as THEORY
from tsfm_lens.studies.rank_theory.measurements_models import MEASUREMENTS as RANKS
from tsfm_lens.studies.recipes.measurements import MEASUREMENTS as LOW_RANK
from tsfm_lens.studies.structured.measurements import MEASUREMENTS as STRUCTURE

for measurement in (*STRUCTURE, *RANKS, *EXPERIMENTS, *LOW_RANK, *THEORY):
    add(measurement)
add_figures(ENTRIES, ELSEWHERE)
