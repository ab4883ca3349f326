"""Readings of where heads look: entropy, roll-out maps, attention flow, norm-weighted attention."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.report.words import capital, extremes, head_at, layers, listed, nats, num
from tsfm_lens.viz.select import array
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.tokens import TokenAxis, token_axis


def read_head_entropy(ds: xr.Dataset) -> list[str]:
    """Which head is sharpest, and where the sharp ones are."""
    entropy, sharp = array(ds, "entropy", "layer", "head"), array(ds, "sharp", "layer", "head") > 0
    low, high = extremes(entropy)
    out = [
        f"The sharpest is {head_at(ds, low)} ({nats(entropy.flat[low])}), the most diffuse {head_at(ds, high)} "
        f"({nats(entropy.flat[high])})."
    ]
    counts = sharp.sum(axis=1)
    if counts.any():
        most = [word for word, count in zip(layers(ds), counts, strict=True) if count == counts.max()]
        out.append(
            f"{int(counts.sum())} of {sharp.size} heads are sharp; most of them, {int(counts.max())}, "
            f"{'in' if len(most) == 1 else 'each in'} {listed(most)}."
        )
    out.append("The threshold is relative to this model's own heads, so it compares no two models.")
    return out


def read_rollout(ds: xr.Dataset, heads: str) -> list[str]:
    """What the sharpest or the most diffuse head reads, and how many heads read at a fixed lag."""
    ranks = array(ds, "sharpness_rank", "layer", "head")
    place = int(ranks.argmin() if heads == "sharp" else ranks.argmax())
    entropy = array(ds, "entropy", "layer", "head")
    word = "sharpest" if heads == "sharp" else "most diffuse"
    out = [f"The {word} head is {head_at(ds, place)} ({nats(entropy.flat[place])})."]
    keys, queries = (token_axis(ds, side, overlaps=True) for side in ("key", "query"))
    layer, head = divmod(place, ranks.shape[1])
    one = array(ds, "attention", "query", "key", layer=layer, head=head)
    rest = float(one[:, keys.aside].sum(axis=1).mean())
    if rest >= 0.01:
        out[0] = out[0][:-1] + f", with {percent(rest)} of its attention on special tokens."
    if heads == "sharp" and len(keys.timed) > 1 and len(queries.timed) > 1:
        maps = array(ds, "attention", "layer", "head", "query", "key").reshape(-1, *one.shape)
        steady = [flat for flat, each in enumerate(maps) if _steadiest(each, keys, queries) >= 0.5]
        which = f": {listed([head_at(ds, flat) for flat in steady[:4]])}" if steady else ""
        out.append(
            f"{len(steady)} of {ranks.size} heads have their largest weight at one and the same lag for at least half "
            f"of the queries{which}."
        )
    return out


def _steadiest(weights: np.ndarray, keys: TokenAxis, queries: TokenAxis) -> float:
    """The share of the queries over time whose largest weight is at the most frequent distance."""
    peak = weights[np.ix_(queries.timed, keys.timed)].argmax(axis=1)
    back = queries.start[queries.timed] - keys.start[keys.timed][peak]
    return float(np.unique(back, return_counts=True)[1].max() / len(back))


def read_flow(ds: xr.Dataset) -> list[str]:
    """How much a token keeps of itself, and which input most of the flow comes from."""
    flow = array(ds, "flow", "layer", "query", "key")
    words, keys = layers(ds), token_axis(ds, "key")
    if flow.shape[-1] < 2:
        return ["There is a single token, which can only keep what it has."]
    own = np.array([np.diag(one).mean() for one in flow])
    out = [
        f"After {words[0]} a token keeps {percent(own[0])} of itself on average, after {words[-1]} {percent(own[-1])}."
    ]
    received = flow[-1].mean(axis=0)
    top = int(received.argmax())
    out.append(
        f"{capital(_token(keys, top))} reaches the others most: {percent(float(received[top]))} of a token on average, "
        f"where an even flow would bring {percent(1 / len(received))}."
    )
    out.append("This follows attention patterns alone; it sees neither values nor MLPs.")
    return out


def read_norm_weighted(ds: xr.Dataset) -> list[str]:
    """Which heads write most, and how much of it comes from special tokens."""
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
            f"Special tokens make up most of it in {len(heavy)} of {total.size} heads; the largest share, "
            f"{percent(float(share.flat[most]))}, is that of {head_at(ds, most)}."
        )
    return out


def _token(axis: TokenAxis, token: int) -> str:
    """A token in words, as text and not as markup."""
    if axis.special[token]:
        return f"the {axis.special[token]} token"
    first, last = int(axis.start[token]), int(axis.stop[token]) - 1
    return f"step {first}" if first == last else f"the token of steps {first} to {last}"
