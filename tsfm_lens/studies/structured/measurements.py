"""Structure of the heads' scoring forms: their distance to structured matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.studies._shim import Figure, Measurement, Plate, of_weights
from tsfm_lens.studies.structured.figures import NULL_WORDS, scoring_errors
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.words import count_of, listed, num


def read_scoring_errors(ds: xr.Dataset, budget: int = -1) -> list[str]:
    """Describe the median error of each structure, and count the heads nearer to one than each of its nulls."""
    error = array(ds, "error", "structure", "component", budget=budget)
    if not np.isfinite(error).any():
        return ["All scoring forms are zero."]
    structures, components = names(ds, "structure"), names(ds, "component")
    share = f"{float(ds['budget'].values[budget]):g}"
    words = [f"{num(float(np.nanmedian(own)))} by {name}" for name, own in zip(structures, error, strict=True)]
    out = [f"With the numbers of rank {share} d_head the median form is missed by {listed(words)}, of its norm."]
    for place, null in enumerate(names(ds, "null")):
        stands = array(ds, "gain_stands_out", "structure", "component", null=place, budget=budget) > 0
        gain = array(ds, "gain_estimate", "structure", "component", null=place, budget=budget)
        any_of, against = int(stands.any(0).sum()), NULL_WORDS[null]
        head = f"{count_of(any_of, len(components), 'heads')} {'is' if any_of < 2 else 'are'} nearer to a structure"
        if not any_of:
            out.append(f"{head} than {against} are by chance.")
            continue
        structure, first = np.unravel_index(int(np.argmax(np.where(stands, gain, -np.inf))), gain.shape)
        most = f"most {components[first]} to {structures[structure]}, by {num(float(gain[structure, first]))}"
        out.append("; ".join([f"{head} than {against} are by chance", most]) + ".")
    return out


def read_block_shares(ds: xr.Dataset) -> list[str]:
    """Describe the share of the forms in the blocks of each level."""
    share, null_share = (
        array(ds, "block_share", "level", "component"),
        array(ds, "null_block_share", "level", "component", null=names(ds, "null").index("rotated")),
    )
    shares = [
        f"{num(100 * float(np.nanmedian(own)))} % in {count} blocks (rotated {num(100 * float(np.nanmedian(other)))} %)"
        for count, own, other in zip(names(ds, "level"), share, null_share, strict=True)
        if int(count) > 1 and np.isfinite(own).any()
    ]
    return [f"Of the squared median form lie {listed(shares)}."] if shares else []


def _scoring_structure(ds: xr.Dataset) -> Iterator[Plate]:
    table = frame(ds, "gain_estimate", "gain_low", "gain_high", "gain_stands_out")
    yield Plate(scoring_errors(ds), table, [*read_scoring_errors(ds), *read_block_shares(ds)])
    errors = frame(ds, "error", "numbers", "shape")
    yield Plate(scoring_errors(ds, null="shuffled"), errors, [])


MEASUREMENTS = (
    Measurement(
        kind="scoring_structure",
        theme="Weights alone",
        about="how near low-rank, block-diagonal, multi-level and block-tensor-train matrices of one size come to "
        "W_Q W_Kᵀ of every head, against rotated and shuffled streams and random weights",
        heading="Structure of the scoring forms",
        guide="A head scores tokens by the form W_Q W_Kᵀ, of which structured matrices with fewer numbers are an "
        "approximation. All but low rank depend on the basis of the stream and on the order of its features: nearer "
        "than rotated bases means a privileged basis, nearer than shuffled features means blocks in the order in which "
        "they stand. What acts between the projections, as rotary embeddings, is not part of the form.",
        compute=of_weights("studies.structured.scoring_structure"),
        plates=_scoring_structure,
        figures=(Figure(scoring_errors, "How near structured matrices of one size come to the heads' scoring forms."),),
        source="Structured attention, section 3 and table 1",
    ),
)
