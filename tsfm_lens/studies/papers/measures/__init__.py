"""Measures of the papers' numbers: one function an item, registered by its id."""

from tsfm_lens.studies.papers.measures import (  # noqa: F401
    definitions,
    heads,
    induction,
    layers,
    lens_records,
    low_rank,
    models,
    rank_records,
    samformer,
    structured,
    theory,
)
