"""Register the probes, measurements and figures of the studies with the core; an entry point names this module."""

from tsfm_lens.figures.named import add_figures
from tsfm_lens.studies.experiments import figures as _experiments  # noqa: F401
from tsfm_lens.studies.papers.figures import ELSEWHERE, ENTRIES
from tsfm_lens.studies.rank_theory import figures, figures_models  # noqa: F401
from tsfm_lens.studies.recipes import figures as _recipes  # noqa: F401
from tsfm_lens.studies.structured import figures as _structured  # noqa: F401

add_figures(ENTRIES, ELSEWHERE)
