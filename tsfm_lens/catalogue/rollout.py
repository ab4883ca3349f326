"""Attention along a forecast and through the layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import on_first
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame, tokens_table
from tsfm_lens.catalogue.words import capital, count_of, extremes, head_at, is_head, layers, listed, nats, num, verb
from tsfm_lens.viz import attention_flow_map, norm_weighted_map, rollout_panels
from tsfm_lens.viz.attention import single_series
from tsfm_lens.viz.rollout import heads_shown
from tsfm_lens.viz.select import array
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.tokens import TokenAxis, token_axis

_LEAST = 0.01  # of the largest possible value: cells below are in no table


def read_rollout(ds: xr.Dataset, heads: str) -> list[str]:
    """Describe what the sharpest or the most diffuse head reads, and how many heads read at a fixed lag."""
    ranks = array(ds, "sharpness_rank", "layer", "head")
    place = int(ranks.argmin() if heads == "sharp" else ranks.argmax())
    entropy = array(ds, "entropy", "layer", "head")
    word = "sharpest" if heads == "sharp" else "most diffuse"
    out = [f"On {single_series(ds)} the {word} {is_head(ds, entropy, place, nats)} ({nats(entropy.flat[place])})."]
    keys, queries = (token_axis(ds, side, overlaps=True) for side in ("key", "query"))
    layer, head = divmod(place, ranks.shape[1])
    one = array(ds, "attention", "query", "key", layer=layer, head=head)
    rest = float(one[:, keys.aside].sum(axis=1).mean())
    if rest >= 0.01:
        out.append(f"Of the attention of {head_at(ds, place)}, {percent(rest)} is on special tokens.")
    if heads == "sharp" and len(keys.timed) > 1 and len(queries.timed) > 1:
        maps = array(ds, "attention", "layer", "head", "query", "key").reshape(-1, *one.shape)
        steady = [flat for flat, each in enumerate(maps) if _steadiest(each, keys, queries) >= 0.5]
        which = f": {listed([head_at(ds, flat) for flat in steady[:4]])}" if steady else ""
        out.append(
            f"{count_of(len(steady), ranks.size, 'heads')} {verb(len(steady), 'have', 'has')} "
            f"{verb(len(steady), 'their', 'its')} largest weight at one and the same lag for at least half of the "
            f"queries{which}."
        )
    return out


def _steadiest(weights: np.ndarray, keys: TokenAxis, queries: TokenAxis) -> float:
    """Compute the share of the queries over time whose largest weight is at the most frequent distance."""
    peak = weights[np.ix_(queries.timed, keys.timed)].argmax(axis=1)
    back = queries.start[queries.timed] - keys.start[keys.timed][peak]
    return float(np.unique(back, return_counts=True)[1].max() / len(back))


def read_flow(ds: xr.Dataset) -> list[str]:
    """Describe how much a token keeps of itself, and which input most of the flow comes from."""
    flow = array(ds, "flow", "layer", "query", "key")
    words, keys = layers(ds), token_axis(ds, "key")
    if flow.shape[-1] < 2:
        return ["There is a single token, which can only keep what it has."]
    self_share = np.array([np.diag(one).mean() for one in flow])
    first, last = percent(self_share[0]), percent(self_share[-1])
    out = [f"After {words[0]} a token keeps {first} of itself on average, after {words[-1]} {last}."]
    inflow = flow[-1].mean(axis=0)
    top = int(inflow.argmax())
    out.append(
        f"{capital(_token(keys, top))} reaches the others most: {percent(float(inflow[top]))} of a token on average, "
        f"where an even flow would bring {percent(1 / len(inflow))}."
    )
    out.append("This follows attention patterns alone; it sees neither values nor MLPs.")
    return out


def read_norm_weighted(ds: xr.Dataset) -> list[str]:
    """Name the heads that write most, and how much of it comes from special tokens."""
    norms, keys = array(ds, "norm", "layer", "head", "query", "key"), token_axis(ds, "key")
    total = norms.sum(axis=-1).mean(axis=-1)
    low, high = extremes(total)
    out = [
        f"The contributions of all keys to a query are longest in {head_at(ds, high)} ({num(total.flat[high])} on "
        f"average) and shortest in {head_at(ds, low)} ({num(total.flat[low])}), in residual stream units."
    ]
    if len(keys.aside):
        share = norms[..., keys.aside].sum(axis=-1).mean(axis=-1) / np.where(total > 0, total, np.nan)
        heavy = np.flatnonzero(share.ravel() > 0.5)
        most = int(np.nanargmax(share))
        out.append(
            f"Special tokens make up most of it in {count_of(len(heavy), total.size, 'heads').lower()}; the largest "
            f"share, {percent(float(share.flat[most]))}, is that of {head_at(ds, most)}."
        )
    return out


def _token(axis: TokenAxis, token: int) -> str:
    """Write a token in words, as text and not as markup."""
    if axis.special[token]:
        return f"the {axis.special[token]} token"
    first, last = int(axis.start[token]), int(axis.stop[token]) - 1
    return f"step {first}" if first == last else f"the token of steps {first} to {last}"


def _rollout(ds: xr.Dataset) -> Iterator[Plate]:
    attention = ds[["attention"]].where(ds["sharpness_rank"] < heads_shown(ds["sharpness_rank"].size))
    weights, entropies = tokens_table(attention, "attention", _LEAST), frame(ds, "entropy", "sharpness_rank")
    for heads, table in (("sharp", weights), ("diffuse", entropies)):
        yield Plate(rollout_panels(ds, heads=heads), table, read_rollout(ds, heads))


def _flow(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(attention_flow_map(ds), tokens_table(ds, "flow", _LEAST), read_flow(ds))


def _norm_weighted(ds: xr.Dataset) -> Iterator[Plate]:
    table = tokens_table(ds, "norm", _LEAST * float(np.nanmax(ds["norm"].values)))
    yield Plate(norm_weighted_map(ds), table, read_norm_weighted(ds))


MEASUREMENTS = (
    Measurement(
        kind="rollout",
        theme="Activations",
        about="roll-out maps: context × horizon, head by head",
        heading="Roll-out maps",
        guide="What each head reads in the context for every token of the forecast, side by side. A diagonal band "
        "reads at a fixed lag, a horizontal one the same steps throughout.",
        compute=on_first("rollout_maps"),
        plates=_rollout,
        figures=(Figure("rollout_panels", "What the sharpest heads read along the forecast."),),
        source="tsfm-lens, appendix D.2",
    ),
    Measurement(
        kind="attention_flow",
        theme="Activations",
        about="attention roll-out through the layers",
        heading="Attention flow",
        guide="How much of each input token may have reached each token after a layer: the attention of all layers "
        "multiplied, with half of each token staying in place.",
        compute=on_first("attention_flow"),
        plates=_flow,
        figures=(Figure("attention_flow_map", "How much of each token may have reached each other."),),
        source="Abnar and Zuidema 2020",
    ),
    Measurement(
        kind="norm_weighted",
        theme="Activations",
        about="attention weighted by the length of what it moves",
        heading="Norm-weighted attention",
        guide="The attention weight times the length of what it brings. A token can be much attended to and bring "
        "little.",
        compute=on_first("norm_weighted_attention"),
        plates=_norm_weighted,
        figures=(Figure("norm_weighted_map", "How long the vectors are that keys contribute."),),
        source="Kobayashi et al. 2020",
    ),
)
