"""Theory as code: ranks, embeddings, constructions and bounds on attention, in numpy and float64, without any model."""

from tsfm_lens.theory.ranks import (
    angles,
    decade_histogram,
    effective_rank,
    epsilon_rank,
    participation_ratio,
    relative_spectrum,
)

__all__ = [
    "angles",
    "decade_histogram",
    "effective_rank",
    "epsilon_rank",
    "participation_ratio",
    "relative_spectrum",
]
