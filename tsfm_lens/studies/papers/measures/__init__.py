"""Measures of the papers' numbers: one function an item, registered by its id."""

from tsfm_lens.studies.papers.measures import (  # noqa: F401
    definitions,
    heads,
    induction,
    layers,
    low_rank,
    models,
    samformer,
    structured,
    theory,
)
