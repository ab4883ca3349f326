"""Numerical experiments of the paper and checks of its bounds: a seed and sizes in, a labelled dataset out."""

from tsfm_lens.studies.rank_theory.experiments.bounds import (
    compression_bounds,
    embedding_bounds,
    growth_bounds,
    sketch_bounds,
)
from tsfm_lens.studies.rank_theory.experiments.heads import sketching_by_heads, spectra_by_heads
from tsfm_lens.studies.rank_theory.experiments.rank import chebyshev_curves, compression_by_rank, compression_by_width

__all__ = [
    "chebyshev_curves",
    "compression_bounds",
    "compression_by_rank",
    "compression_by_width",
    "embedding_bounds",
    "growth_bounds",
    "sketch_bounds",
    "sketching_by_heads",
    "spectra_by_heads",
]
