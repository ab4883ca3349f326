"""Sentences on the nulls of a claim: how many draws do what is claimed, too."""

from __future__ import annotations

import xarray as xr

from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.viz.words import num


def describe_nulls(member: xr.Dataset, name: str) -> list[str]:
    """Say how many nulls of one member of a result do as much; nothing without nulls.

    Args:
        member: result, of which one member is selected.
        name: of the effect.

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
    return [
        f"Of {count} random directions of the same activations, with a change of the"
        f" same norm, {round(share * count)} do as much or more ({num(low)} to"
        f" {num(high)}); the effect {standing}."
    ]
