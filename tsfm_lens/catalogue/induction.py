"""Induction: what heads do with a motif that comes again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import of_results, of_sequences
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.needs import SEQUENCES
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import head_at, listed, num
from tsfm_lens.viz import induction_corner, induction_maps, overlap_thresholds, repeated_motif_map
from tsfm_lens.viz.induction import past_both
from tsfm_lens.viz.select import array
from tsfm_lens.viz.theme import percent

_THRESHOLDS = {"prefix_matching": "prefix_from", "copy_score": "copy_from"}


def _induction(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(induction_maps(ds), frame(ds, "prefix_matching", "copy_score", "induction"), read_induction(ds))


def _overlap(ds: xr.Dataset) -> Iterator[Plate]:
    scores = frame(ds, "prefix_matching", "copy_score", "normalised", "induction", "sharp")
    yield Plate(induction_corner(ds), scores, read_overlap(ds))
    sweep = frame(ds, "sweep_sharp_given_induction", "sweep_induction_given_sharp")
    yield Plate(overlap_thresholds(ds), sweep, [])


def _motif(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(repeated_motif_map(ds), frame(ds, "prefix_matching", "control", "advantage"), read_motif(ds))


def read_induction(ds: xr.Dataset) -> list[str]:
    """Count the heads that pass both thresholds beyond the noise, and state how well the model copies."""
    surely, perhaps = past_both(ds)
    which = f": {listed([head_at(ds, flat) for flat in np.flatnonzero(surely)[:6]])}" if surely.any() else ""
    least = [num(float(ds.attrs[name])) for name in _THRESHOLDS.values()]
    out = [
        f"{int(surely.sum())} of {surely.size} heads are induction heads beyond doubt, with prefix matching above "
        f"{least[0]} and a copy score above {least[1]}{which}."
    ]
    if perhaps.any():
        out.append(f"Of {int(perhaps.sum())} more these sequences do not tell.")
    return [*out, f"The model repeats the motif's next token in {percent(float(ds['copy_accuracy']))} of the cases."]


def read_overlap(ds: xr.Dataset) -> list[str]:
    """Count the induction heads that are sharp."""
    sharp = array(ds, "sharp", "layer", "head") > 0
    surely, perhaps = past_both(ds)
    return [
        f"{int(surely.sum())} of {sharp.size} heads are induction heads beyond doubt, of {int(perhaps.sum())} more "
        f"these sequences do not tell, and {int(sharp.sum())} are sharp; {int((surely & sharp).sum())} are surely "
        f"both, {int((perhaps & sharp).sum())} perhaps."
    ]


def read_motif(ds: xr.Dataset) -> list[str]:
    """Count the heads that look at the motif's last instance more than at the same steps of a series without one."""
    advantage = Standing(ds, "advantage", "layer", "head", target=0)
    heads = advantage.stands_out & (advantage.estimate > 0)
    first = advantage.leader(heads)
    most = f", most of all {head_at(ds, first)} ({advantage.told(first, percent)})" if first is not None else ""
    return [
        f"{int(heads.sum())} of {heads.size} heads give more of their attention there than in the control, which "
        f"has no motif that comes again{most}."
    ]


MEASUREMENTS = (
    Measurement(
        kind="induction",
        theme="Behaviour",
        about="repeated random tokens: prefix matching, copy score, induction heads",
        heading="Induction heads",
        guide="A motif of random tokens comes several times. An induction head looks at what followed its earlier "
        "instances, and raises the probability that it follows again.",
        compute=of_sequences("repeated_tokens"),
        plates=_induction,
        figures=(Figure("induction_maps", "Prefix-matching and copying of every head."),),
        source="tsfm-lens, appendix G; Olsson et al. 2022",
        paper=("S3-PREF", "S3-RRT"),
        needs=SEQUENCES,
    ),
    Measurement(
        kind="induction_overlap",
        theme="Behaviour",
        about="overlap of induction and sharp heads, over thresholds",
        heading="Induction heads and sharp heads",
        guide="Whether the heads that copy a motif are those that attend sharply, and how much that hangs on the "
        "thresholds.",
        compute=of_results("induction_overlap", "induction", "head_entropy"),
        plates=_overlap,
        figures=(
            Figure("induction_corner", "Prefix-matching, copying and entropy against each other."),
            Figure("overlap_thresholds", "Overlap of induction and sharp heads over thresholds."),
        ),
        source="tsfm-lens, table 5 and figure 23",
        paper=("S3-T5", "S3-F23"),
        needs=SEQUENCES,
    ),
    Measurement(
        kind="repeated_motif",
        theme="Behaviour",
        about="repeated random motif in values, for every model, with a control",
        heading="Repeated motifs",
        guide="A motif of random values comes several times. How much attention heads give to its last instance, "
        "against the same steps of a series in which nothing comes again.",
        compute=of_sequences("repeated_motif"),
        plates=_motif,
        figures=(Figure("repeated_motif_map", "Attention to the last instance of a repeated motif."),),
        source="after Olsson et al. 2022",
    ),
)
