"""Induction heads on repeated tokens."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.needs import SEQUENCES
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.select import array, model_of
from tsfm_lens.viz.sheet import Look
from tsfm_lens.viz.theme import number, percent
from tsfm_lens.viz.words import head_at, listed, num

__all__ = ["induction_maps"]
_DIMS = ("layer", "head")
_THRESHOLDS = {"prefix_matching": "prefix_from", "copy_score": "copy_from"}


INDUCTION = measurement(
    "induction",
    theme="Behaviour",
    title="Induction heads",
    summary="repeated random tokens: prefix matching, copy score, induction heads",
    description="A motif of random tokens comes several times. An induction head looks at what followed its earlier "
    "instances, and raises the probability that it follows again.",
    source="tsfm-lens, appendix G; Olsson et al. 2022",
    paper=("S3-PREF", "S3-RRT"),
    needs=SEQUENCES,
)


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


def past_both(ds: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Find the heads (layer, head) that pass both thresholds surely, and further ones that may, at 95 % for all.

    Of a result without intervals: those whose scores pass, and no further ones.
    """
    sure, could = [], []
    for name, key in _THRESHOLDS.items():
        score = finding(ds, name, "layer", "head")
        if score is None:
            passing = array(ds, "induction", "layer", "head") > 0
            return passing, np.zeros_like(passing)
        # Bonferroni: the interval of one head and score, widened to that of all of them
        one, every = (NormalDist().inv_cdf(1 - 0.025 / count) for count in (1, 2 * score.estimate.size))
        least, wider = float(ds.attrs[key]), every / one
        sure.append(score.estimate - wider * (score.estimate - score.low) > least)
        could.append(score.estimate + wider * (score.high - score.estimate) > least)
    surely = np.logical_and.reduce(sure)
    return surely, np.logical_and.reduce(could) & ~surely


@INDUCTION.figure(
    "Prefix-matching and copying of every head.",
    variables=("prefix_matching", "copy_score", "induction"),
    table=("prefix_matching", "copy_score", "induction"),
    sentences=read_induction,
)
def induction_maps(ds: xr.Dataset) -> go.Figure:
    """Draw layer × head maps of prefix matching and copy score, and of the entropy where known.

    Args:
        ds: of kind "induction".

    Returns:
        Two or three heat maps; frames are around heads that are induction heads beyond doubt.
    """
    surely, perhaps = past_both(ds)
    which = "the token after the last instance" if ds.attrs.get("offset", 1) else "the last instance"
    ways: dict[str, tuple[str, str, str, Look]] = {
        "prefix_matching": ("prefix matching", f"attention to {which}", "", {"low": 0.0}),
        "copy_score": ("copying", "copy score", "standard deviations", {}),
        "entropy": ("attention entropy", "entropy", "nats", {"reverse": True}),
    }
    maps = [
        HeadMap(array(ds, name, "layer", "head"), title, word, unit, noise=finding(ds, name, *_DIMS), **options)
        for name, (title, word, unit, options) in ways.items()
        if name in ds
    ]
    thresholds = " and ".join(
        f"{word} of at least {number(ds.attrs[key])}"
        for word, key in (("prefix matching", "prefix_from"), ("a copy score", "copy_from"))
        if key in ds.attrs
    )
    motif, repeats = ds.attrs.get("motif", "?"), ds.attrs.get("repeats", "?")
    read = {"last": "at the last decoder position", "first": "after the prompt"}.get(ds.attrs.get("positions", ""))
    return head_maps(
        ds,
        maps,
        f"Induction heads of {model_of(ds)}: {int(surely.sum())} of {surely.size} cross-attention heads beyond doubt",
        f"{motif} random tokens shown {repeats} times" + (f", scores read {read}" if read else ""),
        f"framed: {thresholds or 'induction heads'}, beyond doubt for all heads together",
        f"of {int(perhaps.sum())} more these sequences do not tell" if perhaps.any() else "",
        outlined=surely,
    )
