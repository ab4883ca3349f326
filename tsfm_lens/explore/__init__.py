"""The linked view of a model's heads in a notebook."""

from tsfm_lens.explore.opening import explore

__all__ = ["explore"]
