"""Register the measurements and figures of the studies with the core; an entry point names this module."""

from tsfm_lens.catalogue import add
from tsfm_lens.figures.named import add_figures
from tsfm_lens.studies.experiments.figures import MEASUREMENTS as EXPERIMENTS
from tsfm_lens.studies.papers.figures import ELSEWHERE, ENTRIES
from tsfm_lens.studies.rank_theory.figures import MEASUREMENTS as THEORY
from tsfm_lens.studies.rank_theory.figures_bounds import MEASUREMENTS as BOUNDS
from tsfm_lens.studies.rank_theory.figures_models import MEASUREMENTS as RANKS
from tsfm_lens.studies.recipes.figures import MEASUREMENTS as LOW_RANK
from tsfm_lens.studies.structured.figures import MEASUREMENTS as STRUCTURE

for measurement in (*STRUCTURE, *RANKS, *EXPERIMENTS, *LOW_RANK, *THEORY, *BOUNDS):
    add(measurement)
add_figures(ENTRIES, ELSEWHERE)
