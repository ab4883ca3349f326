"""What a figure shows, in plain sentences computed from its numbers."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.report.words import capital, layers, listed, measured, nats, num, signed
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, median_position, names, statistic_of, unit_of
from tsfm_lens.viz.shares import attribution_shares
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.tokens import token_axis


def read_forecast(ds: xr.Dataset, series: int) -> list[str]:
    """Course and width of the forecast of one series, and how it met the truth where that is known."""
    name, amount = names(ds, "series")[series], measured(unit_of(ds, series))
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "quantile", "step", series=series)
    median = values[median_position(levels)]
    out = [
        f"The median forecast of {name} starts at {amount(median[0])} and ends at {amount(median[-1])} "
        f"after {len(median)} steps."
    ]
    low, high = int(np.argmin(levels)), int(np.argmax(levels))
    share = levels[high] - levels[low]
    if abs(levels[low] + levels[high] - 1) < 1e-6 and share > 0:
        width = values[high] - values[low]
        out.append(
            f"Its {100 * share:.3g} % band is {amount(width[0])} wide at the first step and "
            f"{amount(width[-1])} at the last."
        )
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(len(median), np.nan)
    known = np.isfinite(truth)
    if known.any():
        inside = (truth >= values[low]) & (truth <= values[high])
        error = float(np.abs(median - truth)[known].mean())
        out.append(
            f"The truth lies within the band in {int(inside[known].sum())} of {int(known.sum())} steps "
            f"(a calibrated band would hold about {100 * share:.3g} % of many such steps), and the median misses "
            f"it by {amount(error)} on average"
        )
        context = array(ds, "context", "time", series=series) if "context" in ds else np.array([])
        seen = context[np.isfinite(context)]
        if len(seen):
            naive = float(np.abs(seen[-1] - truth)[known].mean())
            out[-1] += f"; repeating the last observed value would have missed it by {amount(naive)}"
        out[-1] += "."
    return out


def read_entropy(ds: xr.Dataset) -> list[str]:
    """Where along the depth the model becomes sure."""
    entropy = array(ds, "entropy", "layer", "series", "step").mean(axis=-1)
    middle, words = medians(entropy), layers(ds)
    n = entropy.shape[1]
    over = f", median over {n} series" if n > 1 else ""
    out = [
        f"The entropy of the next value's distribution goes from {num(middle[0])} nats at {words[0]} to "
        f"{num(middle[-1])} nats at {words[-1]}{over}: as many equally likely bins as {num(np.exp(middle[0]))} "
        f"at first and {num(np.exp(middle[-1]))} at the end."
    ]
    if len(middle) < 2:
        return out
    change = np.diff(middle)
    best = int(np.argmin(change))
    if change[best] < 0:
        agree = int((np.argmin(np.diff(entropy, axis=0), axis=0) == best).sum())
        out.append(
            f"{capital(words[best + 1])} lowers it most, by {num(-change[best])} nats"
            + (f"; it is the layer of the largest fall in {agree} of {n} series." if n > 1 else ".")
        )
    rising = [words[i + 1] for i in np.flatnonzero(change > 0)]
    if rising:
        out.append(f"It rises in {listed(rising)}: there the readable forecast becomes less certain.")
    return out


def read_logit_map(ds: xr.Dataset, series: int) -> list[str]:
    """From which layer on the most likely value is the one the model ends with."""
    probability = array(ds, "probability", "layer", "step", "bin", series=series)
    value = array(ds, "value", "bin", series=series)
    words, amount = layers(ds), measured(unit_of(ds, series))
    mode = value[probability.argmax(axis=-1)]
    width = float(np.median(np.diff(np.sort(value)))) if len(value) > 1 else 0.0
    agree = (np.abs(mode - mode[-1]) <= 1.5 * width).mean(axis=-1)
    # the first layer from which on all layers agree at half of the steps and more
    first = len(agree) - int(np.argmin(np.append(agree[::-1] >= 0.5, False)))
    out = [
        f"For {names(ds, 'series')[series]} the most likely value of {words[0]} is that of the last layer, give or "
        f"take one bin, at {100 * agree[0]:.0f} % of the steps"
        + (
            f"; from {words[first]} on it is at half of them and more."
            if first < len(agree) - 1
            else "; only the last layer settles it."
        )
    ]
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(mode.shape[1], np.nan)
    if np.isfinite(truth).all():
        error = np.abs(mode - truth).mean(axis=-1)
        out.append(
            f"Its distance from the truth, mean over steps, is {amount(error[0])} at {words[0]} and "
            f"{amount(error[-1])} at {words[-1]}; the least is {amount(error.min())}, at "
            f"{words[int(error.argmin())]}."
        )
    return out


def read_lens_forecast(ds: xr.Dataset, series: int) -> list[str]:
    """How far each layer's forecast is from the last layer's, and from the truth where known."""
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "layer", "quantile", "step", series=series)
    median, words = values[:, median_position(levels)], layers(ds)
    amount = measured(unit_of(ds, series))
    away = np.abs(median - median[-1]).mean(axis=-1)
    out = [
        f"Read from {words[0]}, the {statistic_of(ds)} forecast of {names(ds, 'series')[series]} is "
        f"{amount(away[0])} away from the final one, mean over steps"
        + (f"; before the last layer it is {amount(away[-2])} away." if len(away) > 2 else ".")
    ]
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(median.shape[1], np.nan)
    known = np.isfinite(truth)
    if known.any():
        error = np.abs(median - truth)[:, known].mean(axis=-1)
        best = int(error.argmin())
        out.append(
            f"Against the truth {words[best]} is closest ({amount(error[best])})"
            + ("." if best == len(error) - 1 else f"; the last layer misses by {amount(error[-1])}.")
        )
    return out


def read_gain(ds: xr.Dataset) -> list[str]:
    """Which layer helps and which hurts, for every metric."""
    gain = array(ds, "gain", "metric", "layer", "series")
    words, n = layers(ds), gain.shape[2]
    out = []
    for metric, values in zip(names(ds, "metric"), gain, strict=True):
        middle = medians(values)
        known = np.flatnonzero(np.isfinite(middle))
        if not len(known):
            continue
        best = int(known[np.argmin(middle[known])])
        worse = [words[i] for i in known if middle[i] > 0]
        if middle[best] < 0:
            text = f"{metric}: {words[best]} lowers the error most, by {num(-middle[best])} %"
            if n > 1:
                text += f" in the median; it lowers it in {int((values[best] < 0).sum())} of {n} series"
        else:
            text = f"{metric}: no layer lowers the error" + (" in the median" if n > 1 else "")
        out.append(f"{text}{f'; {listed(worse)} raise it' if len(worse) > 1 else ''}"
                   f"{f'; {worse[0]} raises it' if len(worse) == 1 else ''}.")  # fmt: skip
    return out


def read_ablation(ds: xr.Dataset, metric: str) -> list[str]:
    """Which head and which MLP matter most, if any stands out of the others, and how few carry the effect."""
    kinds = ds["kind"].values.astype(str)
    relative = metric.endswith("change")
    estimate = array(ds, f"{metric}_estimate", "component")
    heads = np.flatnonzero((ds["head"].values >= 0) & np.isfinite(estimate))
    mlps = np.flatnonzero((kinds == "mlp") & np.isfinite(estimate))
    groups = ((heads, "head"), (mlps, "MLP"))
    out = [_leading(ds, metric, group, noun) for group, noun in groups if len(group)]
    out_of = array(ds, f"{metric}_stands_out", "component")[heads].astype(bool)
    if len(heads):
        out.append(f"{int(out_of.sum())} of {len(heads)} heads stand out of the noise.")
    if len(heads) > 4 and not relative and out_of.any():
        order = np.sort(estimate[heads])[::-1]
        few = int(np.searchsorted(np.cumsum(order), 0.5 * order.sum())) + 1
        out.append(f"{few} of {len(heads)} heads make up half of the sum of all heads' effects.")
    out.append("Components are removed one at a time: those that can stand in for each other look unimportant.")
    return out


def _leading(ds: xr.Dataset, metric: str, group: np.ndarray, noun: str) -> str:
    """Names the member of a group that leads it; says that none does otherwise."""
    relative = metric.endswith("change")
    word = {"spearman_distance": "Spearman distance", "mae_change": "MAE", "mase_change": "MASE"}.get(metric, metric)
    parts = {part: array(ds, f"{metric}_{part}", "component") for part in ("estimate", "low", "high", "leads")}
    scale, unit = (100.0, " %") if relative else (1.0, "")
    n = ds.sizes["series"]
    top = group[parts["leads"][group].astype(bool)]
    over = f" over {n} series" if n > 1 else ""
    if not len(top):
        largest = scale * float(np.nanmax(np.abs(parts["estimate"][group])))
        amount = f"up to {num(largest)}{unit}{over}"
        return f"No {noun} stands out: the largest effects on the {word}, {amount}, cannot be told apart."
    at = int(top[0])
    value, low, high = (scale * float(parts[part][at]) for part in ("estimate", "low", "high"))
    moves = f"{'raises' if value > 0 else 'lowers'} the {word}" if relative else "moves the forecast"
    text = f"The {noun} whose removal {moves} most is {names(ds, 'component')[at]} ({'' if relative else word + ' '}"
    text += f"{(signed if relative else num)(value)}{unit}"
    if num(low) != num(high):
        text += f" on average, {num(low)} to {num(high)}{unit}{over}"
    return text + ")."


def read_ablation_forecasts(ds: xr.Dataset, series: int, components: list[str]) -> list[str]:
    """How far the strongest ablation moves the forecast."""
    top = components[0]
    base = array(ds, "baseline_forecast", "step", series=series)
    row = names(ds, "component").index(top)
    moved = array(ds, "forecast", "step", component=row, series=series)
    amount, span = measured(unit_of(ds, series)), float(np.ptp(base))
    distance = float(np.abs(moved - base).mean())
    against = f", {100 * distance / span:.3g} % of the range it runs through" if span > 0 else ""
    return [
        f"Without {top} the {statistic_of(ds)} forecast of {names(ds, 'series')[series]} moves by "
        f"{amount(distance)} on average{against}; its range goes from {amount(span)} to {amount(float(np.ptp(moved)))}."
    ]


def read_attribution(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Which components push the forecast up and down, and whether the sum is complete."""
    shares = attribution_shares(ds, decomposition=decomposition, series=series)
    mean = shares.values.mean(axis=1)
    order = np.argsort(-np.abs(mean))[:3]
    parts = [f"{shares.components[i]} ({signed(mean[i])})" for i in order]
    up, down = float(mean[mean > 0].sum()), float(mean[mean < 0].sum())
    out = [
        f"By {shares.decomposition}, in {shares.unit}, mean over steps: the largest contributions are {listed(parts)}. "
        f"All positive ones sum to {signed(up)}, all negative ones to {signed(down)}."
    ]
    if "completeness_error" in ds:
        error = float(
            ds["completeness_error"].isel(decomposition=names(ds, "decomposition").index(decomposition), series=series)
        )
        small = "up to rounding they add up to the whole" if error < 1e-3 else "so much of the whole is unexplained"
        out.append(f"The completeness error is {percent(error)}: {small}.")
    return out


def read_attribution_steps(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Which component varies most over the steps, and which one leads how often."""
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


def read_attention(ds: xr.Dataset) -> list[str]:
    """Which heads are sharp, which diffuse, which rest on special tokens."""
    pattern = array(ds, "pattern", "layer", "head", "query", "key")
    entropy = head_entropy(pattern)
    words = [[f"layer {a}, head {b}" for b in names(ds, "head")] for a in names(ds, "layer")]
    low = np.unravel_index(int(entropy.argmin()), entropy.shape)
    high = np.unravel_index(int(entropy.argmax()), entropy.shape)
    most = float(np.log(pattern.shape[-1]))
    out = [
        f"The sharpest is {words[low[0]][low[1]]} (entropy {nats(entropy[low])}), the most diffuse "
        f"{words[high[0]][high[1]]} ({num(entropy[high])} of at most {num(most)} nats)."
    ]
    keys = token_axis(ds, "key")
    if len(keys.aside):
        rest = pattern[..., keys.aside].sum(-1).mean(-1)
        heavy = [words[i][j] for i, j in np.argwhere(rest > 0.5)]
        if heavy:
            few = listed(heavy[:6]) + (f" and {len(heavy) - 6} more" if len(heavy) > 6 else "")
            out.append(f"More than half of the attention goes to special tokens in {few}.")
    out.append("Attention says what a head reads; only an ablation says whether it matters.")
    return out


def read_attention_map(ds: xr.Dataset, layer: int, head: int) -> list[str]:
    """How far back a head looks."""
    weights = array(ds, "pattern", "query", "key", layer=layer, head=head)
    keys, queries = token_axis(ds, "key"), token_axis(ds, "query")
    if not len(keys.timed) or not len(queries.timed):
        return []
    part = weights[np.ix_(queries.timed, keys.timed)]
    peak = part.argmax(axis=1)
    back = queries.start[queries.timed] - keys.start[keys.timed][peak]
    lags, counts = np.unique(back, return_counts=True)
    common = int(lags[counts.argmax()])
    direction = f"{common} steps back" if common > 0 else (f"{-common} steps ahead" if common else "at the same step")
    return [
        f"Its queries look most often {direction} (the largest weight of {int(counts.max())} of {len(back)} "
        f"queries); the largest weight is {num(float(part.max(axis=1).mean()))} on average."
    ]


def head_entropy(pattern: np.ndarray) -> np.ndarray:
    """Entropy in nats of every head, mean over queries. ``pattern``: (layer, head, query, key)."""
    logs = np.log(np.where(pattern > 0, pattern, 1.0))
    return 0.0 - (pattern * logs).sum(axis=-1).mean(axis=-1)
