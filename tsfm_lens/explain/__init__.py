"""Why a forecast is what it is: which inputs moved it, on which routes, and whether that can be believed."""

from tsfm_lens.explain.attribution import METHODS, attribute_inputs
from tsfm_lens.explain.behaviour import covariate_use
from tsfm_lens.explain.masking import REFERENCES, MaskedBatch, mask_seen, masked, reference_values
from tsfm_lens.explain.segments import Segment, item_of, item_rows, refined, segments, token_edges
from tsfm_lens.explain.shapley import Sampled, all_masks, exact_shapley, sampled_shapley, shapley_interactions
from tsfm_lens.explain.values import Masks, forecasts

__all__ = [
    "METHODS",
    "MaskedBatch",
    "Masks",
    "REFERENCES",
    "Sampled",
    "Segment",
    "all_masks",
    "attribute_inputs",
    "covariate_use",
    "exact_shapley",
    "forecasts",
    "item_of",
    "item_rows",
    "mask_seen",
    "masked",
    "reference_values",
    "refined",
    "sampled_shapley",
    "segments",
    "shapley_interactions",
    "token_edges",
]
