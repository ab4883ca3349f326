"""Sparse dictionaries of activations, each figure beside its nulls.

A dictionary learns directions, "features", of which few are active in each token. Read
:mod:`tsfm_lens.studies.dictionaries.dictionary` for sparse autoencoders and
transcoders; :func:`measure_dictionaries` compares those of a model with principal
components, with untrained twins and with random directions;
:func:`superposed_features` plants features that a dictionary has to find. Nothing here
says what a feature means.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.studies.dictionaries.dictionary import *
from tsfm_lens.studies.dictionaries.measures import *
from tsfm_lens.studies.dictionaries.superposition import *

__all__ = _public_names(globals())
