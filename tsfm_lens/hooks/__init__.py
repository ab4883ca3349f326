"""Hook points, components, activations and interventions on any wired model.

A :class:`Wiring` is the table of a model; :class:`HookRegistry` sets hooks by it. Read
these two first. Loading a model, and ``run_with_cache`` and its kin, are in
:mod:`tsfm_lens.models`.
"""

from tsfm_lens.hooks.activations import Activations, TokenSpans
from tsfm_lens.hooks.component import Component, components, select_components, writers
from tsfm_lens.hooks.interventions import (
    EditPattern,
    Intervention,
    Mean,
    Noise,
    PatchFrom,
    Resample,
    Steer,
    Zero,
)
from tsfm_lens.hooks.recorder import by_row, last_query
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.wiring import (
    Attention,
    Branch,
    Mlp,
    Projection,
    Site,
    Stack,
    Wiring,
)

__all__ = [
    "Activations",
    "Attention",
    "Branch",
    "Component",
    "EditPattern",
    "HookRegistry",
    "Intervention",
    "Mean",
    "Mlp",
    "Noise",
    "PatchFrom",
    "Projection",
    "Resample",
    "Site",
    "Stack",
    "Steer",
    "TokenSpans",
    "Wiring",
    "Zero",
    "by_row",
    "components",
    "last_query",
    "select_components",
    "writers",
]


def __dir__() -> list[str]:
    return __all__
