"""Nuclear norms of attention, input by input."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.select import layer_name, model_of, names
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import CATEGORICAL, GREY, plain
from tsfm_lens.viz.training_watch import run_words, watch_table
from tsfm_lens.viz.words import num

__all__ = ["nuclear_norms"]
_BINS = 24


ATTENTION_NORMS = measurement(
    "attention_norms",
    theme="Training",
    title="Nuclear norms of attention",
    summary="nuclear norms of attention input by input",
    description="The sum of a pattern's singular values: near 1 where all rows are alike, the number of keys for the "
    "identity.",
    source="SAMformer, figure 7",
    maker="made while a model is trained: `tsfm_lens.training` makes it",
    subject=lambda ds: str(ds.attrs.get("model", "")),
)


def read_norms(ds: xr.Dataset) -> list[str]:
    """State the median of each run beside what one row for all and the identity would have."""
    out = []
    for run, one in run_words(ds):
        norm, keys = float(one["nuclear_norm"].median()), [int(value) for value in np.unique(ds["n_keys"].values)]
        whole = f", {num(norm / keys[0])} of the identity's" if len(keys) == 1 else ""
        out.append(f"{run + ': ' if run else ''}The median nuclear norm is {num(norm)}{whole}; 1 is the least.")
    return out


@ATTENTION_NORMS.figure(
    "How nuclear norms of attention spread over inputs.",
    variables=("nuclear_norm",),
    table=lambda ds: watch_table(ds, "layer", "head", "input"),
    sentences=read_norms,
)
def nuclear_norms(ds: xr.Dataset) -> go.Figure:
    """Draw how nuclear norms of attention spread over inputs, runs or layers over each other.

    Args:
        ds: of kind "attention_norms", of one run, or of several of ``training.together``.

    Returns:
        A histogram for each run, or for each layer of a single one, over all heads and inputs; dotted lines at 1, one
        row for all queries, and at the number of keys, the identity.

    Example:
        >>> even, sharp = (dict(a=torch.eye(3)[None, None] * s + (1 - s) / 3) for s in (0.0, 0.9))
        >>> norms = {name: training.attention_norms(each) for name, each in (("even", even), ("sharp", sharp))}
        >>> viz.nuclear_norms(training.together(norms)).layout.meta["title"]
        'Nuclear norms of the attention of even, sharp'
    """
    over = "run" if "run" in ds.dims else "layer"
    words = names(ds, over) if over == "run" else [layer_name(label) for label in names(ds, over)]
    groups = [ds["nuclear_norm"].isel({over: place}).values.ravel() for place in range(ds.sizes[over])]
    groups = [group[np.isfinite(group)] for group in groups]
    low, high = (float(np.concatenate(groups).min()), float(np.concatenate(groups).max()))
    edges = np.linspace(low, high if high > low else low + 1e-3, _BINS + 1)
    canvas = sheet([260], min_width=360)
    panel = next(iter(canvas))
    for place, (word, group) in enumerate(zip(words, groups, strict=True)):
        share = 100 * np.histogram(group, edges)[0] / max(len(group), 1)
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        outline = {"color": colour, "width": 1.8, "shape": "hv"}
        hover = f"{plain(word)}<br>from %{{x:.3g}}: %{{y:.3g}} % of {len(group)} patterns"
        panel.line(edges, [*share, 0.0], f"{word}: median {np.median(group):.3g}", hover, line=outline, colour=colour)
    keys = {int(value) for value in ds["n_keys"].values}
    for level, text in ((1.0, "one row for all"), *(((float(max(keys)), "identity"),) if len(keys) == 1 else ())):
        panel.upright(level, dash="dot")
        panel.note(text, level, 1, yref="domain", yanchor="bottom", size=10, colour=GREY)
    panel.x("nuclear norm of attention")
    panel.y("share of patterns (%)", rangemode="tozero")
    inputs = ds.sizes["input"]
    return canvas.dress(
        f"Nuclear norms of the attention of {model_of(ds)}", f"every head on {inputs} input{'s' * (inputs != 1)}"
    )
