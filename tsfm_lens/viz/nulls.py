"""Sentences on the nulls of a claim: how many draws do what is claimed, too."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.core.nulls import claimed
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.viz.findings import read_estimate
from tsfm_lens.viz.select import array
from tsfm_lens.viz.words import num

__all__: list[str] = []


def describe_nulls(
    ds: xr.Dataset, name: str, *dims: str, at: int = 0, subject: str = "Of"
) -> list[str]:
    """Say how many nulls of one member do as much, and whether it is claimed.

    Args:
        ds: result.
        name: of the effect.
        dims: of its members.
        at: place of the member among the flattened ones.
        subject: what the sentence begins with, such as "encoder.0.mlp: of".

    Returns:
        One sentence; none without nulls.
    """
    if not _has_nulls(ds, name):
        return []
    nulls = array(ds, f"{name}_nulls", "null", *dims)
    drawn = nulls.reshape(len(nulls), -1)[:, at]
    share, exceeds, claim = (
        variable.transpose(*dims).values.flat[at]
        for variable in (
            ds[f"{name}_null_share"],
            ds[f"{name}_exceeds_nulls"],
            claimed(ds, name),
        )
    )
    if not np.isfinite(share):
        return []
    tested = read_estimate(ds, name, *dims).for_others(at)
    if not exceeds:
        standing = "is within what draws reach, so it is no claim"
    elif claim:
        standing = f"exceeds them and {CONFIDENCE_TEXT} of further draws: {tested}"
    elif f"{name}_learned" in ds and tested.startswith("significant"):
        standing = "exceeds them, but not untrained twins, so it is no claim"
    else:
        standing = f"exceeds them, but is no claim: {tested}"
    reaching = round(share * len(drawn))
    do = "does" if reaching == 1 else "do"
    directions = f"{len(drawn)} random directions"
    ends = f"{num(drawn.min())} to {num(drawn.max())}"
    if len(drawn) == 1:
        directions = "1 random direction"
        ends = num(drawn[0])
    return [
        f"{subject} {directions} of the same activations, with a change of the same"
        f" norm, {reaching} {do} as much or more ({ends}); the effect {standing}."
    ]


def null_remark(ds: xr.Dataset, name: str) -> str:
    """Return the range of all nulls, for the subtitle of a map; "" without any."""
    if not _has_nulls(ds, name):
        return ""
    nulls = ds[f"{name}_nulls"]
    low, high = (num(float(end)) for end in (nulls.min(), nulls.max()))
    return f"random directions of the same norm: {low} to {high}"


def _has_nulls(ds: xr.Dataset, name: str) -> bool:
    """Return whether a result has nulls of an effect, and not none of them."""
    return f"{name}_nulls" in ds and ds.sizes["null"] > 0
