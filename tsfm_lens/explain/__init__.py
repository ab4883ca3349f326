"""Why a forecast is what it is: which inputs moved it, on which routes, and whether that can be believed."""

from tsfm_lens.explain.behaviour import covariate_use

__all__ = [
    "covariate_use",
]
