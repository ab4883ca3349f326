"""Attribution: contributions of components to the forecast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import listed, signed
from tsfm_lens.viz import attribution_bars, attribution_heatmap, stream_scheme
from tsfm_lens.viz.select import array, forecast_series, kind_word, names
from tsfm_lens.viz.shares import attribution_shares
from tsfm_lens.viz.theme import percent

_MAX_SERIES = 3  # series with figures of their own
# of several attribution decompositions, the one whose unit a reader knows
_PREFERRED = ("integrated", "expected_value", "linearised", "lens_difference")


def read_attribution(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Describe the components that push the forecast up and down, and whether the sum is complete."""
    shares = attribution_shares(ds, decomposition=decomposition, series=series)
    mean = shares.values.mean(axis=1)
    order = np.argsort(-np.abs(mean))[:3]
    parts = [f"{shares.components[i]} ({signed(mean[i])})" for i in order]
    unit = {"logit": "logits", "probability": "probabilities"}.get(shares.unit, shares.unit)
    up, down = float(mean[mean > 0].sum()), float(mean[mean < 0].sum())
    out = [
        f"On {shares.series}, by {shares.decomposition}, in {unit}, mean over steps, the largest contributions are "
        f"{listed(parts)}. "
        f"All positive ones sum to {signed(up)}, all negative ones to {signed(down)}."
    ]
    if "completeness_error" in ds:
        error = float(
            ds["completeness_error"].isel(decomposition=names(ds, "decomposition").index(decomposition), series=series)
        )
        small = "up to rounding they add up to the whole" if error < 1e-3 else "so much of the whole is unexplained"
        out.append(f"The completeness error is {percent(error)}: {small}.")
    return out


def read_attribution_over_series(ds: xr.Dataset, decomposition: str) -> list[str]:
    """Name the head and the MLP that contribute most over all series, if one does."""
    if ds.sizes["series"] < 2:
        return []
    place = names(ds, "decomposition").index(decomposition)
    share = Standing(ds, "attribution_share", "component", decomposition=place)
    heads = ds["head"].values >= 0
    out = []
    for word, among in (("head", heads), ("MLP", (ds["kind"].values == "mlp") & ~heads)):
        # one alone leads nobody
        first = share.leader(among) if among.sum() > 1 else None
        if first is not None:
            out.append(
                f"Over all series {names(ds, 'component')[first]} contributes most of all {word}s, as a share of the "
                f"sizes of all contributions ({share.told(first, percent)})."
            )
    return out or ["Over all series no head and no MLP contributes more than every other."]


def read_attribution_steps(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Describe which component varies most over the steps, and which one leads how often."""
    shares = attribution_shares(ds, decomposition=decomposition, series=series)
    steps = names(ds, "step")
    varying = int(np.ptp(shares.values, axis=1).argmax())
    row = shares.values[varying]
    lead = np.abs(shares.values).argmax(axis=0)
    places, counts = np.unique(lead, return_counts=True)
    most = int(counts.argmax())
    return [
        f"{shares.components[varying]} changes most over the steps: from {signed(row.min())} (step "
        f"{steps[int(row.argmin())]}) to {signed(row.max())} (step {steps[int(row.argmax())]}), in {shares.unit}.",
        f"{shares.components[places[most]]} has the largest contribution at {int(counts[most])} of {len(lead)} steps.",
    ]


def attribution_table(ds: xr.Dataset, decomposition: str, series: int) -> pd.DataFrame:
    """Tabulate the mean contribution and that of every step, a row per component."""
    shares = attribution_shares(ds, decomposition=decomposition, series=series)
    table = pd.DataFrame({"component": shares.components, "unit": shares.unit})
    table["mean"] = shares.values.mean(axis=1)
    steps = pd.DataFrame(shares.values, columns=[f"step {s}" for s in names(ds, "step")])
    return pd.concat([table, steps], axis=1)


def _attribution(ds: xr.Dataset) -> Iterator[Plate]:
    decompositions = names(ds, "decomposition")
    main = next((m for m in _PREFERRED if m in decompositions), decompositions[0])
    for i in forecast_series(ds, _MAX_SERIES):
        table, words = attribution_table(ds, main, i), read_attribution(ds, main, i)
        words += read_attribution_over_series(ds, main) if i == 0 else []
        yield Plate(attribution_bars(ds, decomposition=main, series=i), table, words)
        steps = read_attribution_steps(ds, main, i)
        yield Plate(attribution_heatmap(ds, decomposition=main, series=i), table, steps)
    for decomposition in decompositions:
        if decomposition != main:
            table, words = attribution_table(ds, decomposition, 0), read_attribution(ds, decomposition, 0)
            yield Plate(attribution_bars(ds, decomposition=decomposition, series=0), table, words)


def _shares(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(stream_scheme(ds), frame(ds, "size", "share"), read_shares(ds))


def read_shares(ds: xr.Dataset) -> list[str]:
    """State how much of what is written heads and MLPs write."""
    share = array(ds, "share", "writer", "series").mean(-1)
    kinds = ds["kind"].values.astype(str)
    words = {"mlp": "the MLPs", "embed": "the embedding"}
    parts = [
        f"{percent(float(share[kinds == kind].sum()))} by {words.get(kind) or kind_word(kind)}"
        for kind in dict.fromkeys(kinds)
    ]
    return [f"Of the sizes of all contributions to the forecast, these shares are written: {listed(parts)}."]


MEASUREMENTS = (
    Measurement(
        kind="attribution",
        theme="Activations",
        about="who writes the forecast",
        heading="Attribution",
        guide="The forecast is split into what each component writes to the residual stream adds to it, with its sign.",
        compute=on_all("attribute"),
        plates=_attribution,
        figures=(
            Figure("attribution_bars", "Who writes the forecast, component by component."),
            Figure("attribution_heatmap", "Who writes the forecast, step by step."),
        ),
        helpers=("component_writes",),
        source="tsfm-lens, section 2; Sundararajan et al. 2017",
    ),
    Measurement(
        kind="stream_shares",
        theme="Activations",
        about="who writes to the residual stream, and how much of the forecast",
        heading="Writers of the residual stream",
        guide="Every attention and MLP adds to one stream; a box is the larger the more of the forecast it writes.",
        compute=on_all("stream_shares"),
        plates=_shares,
        figures=(Figure("stream_scheme", "Who writes to the residual stream."),),
        source="tsfm-lens, section 2 and figure 1B",
    ),
)
