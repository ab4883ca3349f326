"""Explanations of a forecast: the inputs that moved it, the routes they took, and proofs of both."""

from tsfm_lens.explain.attribution import METHODS, attribute_inputs, refine_inputs
from tsfm_lens.explain.covariate_use import covariate_use
from tsfm_lens.explain.curves import deletion_curves
from tsfm_lens.explain.faithfulness import named_routes, prove_routes
from tsfm_lens.explain.masking import REFERENCES, MaskedBatch, mask_seen, masked, reference_values
from tsfm_lens.explain.nulls import NULLS, held_against, untrained_twin
from tsfm_lens.explain.over_items import input_effects, route_effects
from tsfm_lens.explain.routes import input_routes, missed_by_search
from tsfm_lens.explain.segments import Segment, item_of, item_rows, refined, segments, token_edges
from tsfm_lens.explain.shapley import Sampled, all_masks, exact_shapley, sampled_shapley, shapley_interactions
from tsfm_lens.explain.values import Masks, forecasts
from tsfm_lens.explain.verdict import RULES, verdict
from tsfm_lens.probes.given import refuse_others as _refuse_others

__all__ = [
    "METHODS",
    "MaskedBatch",
    "Masks",
    "NULLS",
    "REFERENCES",
    "RULES",
    "Sampled",
    "Segment",
    "all_masks",
    "attribute_inputs",
    "covariate_use",
    "deletion_curves",
    "exact_shapley",
    "forecasts",
    "held_against",
    "input_effects",
    "input_routes",
    "item_of",
    "item_rows",
    "mask_seen",
    "masked",
    "missed_by_search",
    "named_routes",
    "prove_routes",
    "reference_values",
    "refine_inputs",
    "refined",
    "route_effects",
    "sampled_shapley",
    "segments",
    "shapley_interactions",
    "token_edges",
    "untrained_twin",
    "verdict",
]

_refuse_others(__name__)
