"""Measures of the papers' numbers: one function an item, registered by its id."""

from tsfm_lens.studies.papers.measures import (  # noqa: F401
    definitions,
    induction,
    lens_records,
    low_rank,
    models,
    published,
    rank_records,
    samformer,
    structured,
    theory,
)
