"""Sentences on the nulls of a claim: how many draws do what is claimed, too."""

from __future__ import annotations

import xarray as xr

from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.viz.words import num


def describe_nulls(member: xr.Dataset, name: str, subject: str = "") -> list[str]:
    """Say how many nulls of one member of a result do as much; nothing without nulls.

    Args:
        member: result, of which one member is selected.
        name: of the effect.
        subject: what the sentence begins with, such as "encoder.0.mlp: of"; "Of" unless
            given.

    Returns:
        One sentence, or none.
    """
    share = float(member.get(f"{name}_null_share", float("nan")))
    # also where the member has none of its own
    if share != share:
        return []
    nulls = member[f"{name}_nulls"]
    count = nulls.sizes["null"]
    low, high = float(nulls.min()), float(nulls.max())
    standing = "is within what draws reach"
    if bool(member[f"{name}_exceeds_nulls"]):
        standing = f"exceeds them and {CONFIDENCE_TEXT} of further draws"
    n_as_large = round(share * count)
    return [
        f"{subject or 'Of'} {count} random directions of the same activations, with a"
        f" change of the same norm, {n_as_large} do as much or more ({num(low)} to"
        f" {num(high)}); the effect {standing}."
    ]
