"""Attention of heads: patterns, entropy, and attention between patches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import Options, on_all, on_first
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import count_of, extremes, is_head, layers, listed, nats, num, verb
from tsfm_lens.viz import attention_grid, attention_map, head_entropy_map, patch_attention_grid, selected_patch
from tsfm_lens.viz.attention import single_series
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.timeline import timeline
from tsfm_lens.viz.tokens import TokenAxis, token_axis

if TYPE_CHECKING:
    from tsfm_lens.models import Lens


_OFTEN = 1 / 3  # share of the queries that look at one token, or one distance, above which they are said to
_ALIKE = 1e-6  # relative difference of weights that is rounding
_RESTING = 0.5  # share of attention on tokens that stand for no step, above which a head rests on them


def read_attention(ds: xr.Dataset) -> list[str]:
    """Describe the sharp heads, the diffuse ones, and those that rest on special tokens."""
    pattern = array(ds, "pattern", "layer", "head", "query", "key")
    entropy = head_entropy(pattern)
    words = [[f"layer {a}, head {b}" for b in names(ds, "head")] for a in names(ds, "layer")]
    low, high = extremes(entropy)
    most = _most_nats(pattern[high // pattern.shape[1]])
    out = [
        f"On {single_series(ds)} the sharpest {is_head(ds, entropy, low, nats)} (entropy {nats(entropy.flat[low])}), "
        f"the most diffuse {is_head(ds, entropy, high, nats)} ({num(entropy.flat[high])} of at most {num(most)} nats)."
    ]
    keys = token_axis(ds, "key")
    if len(keys.aside):
        rest = pattern[..., keys.aside].sum(-1).mean(-1)
        heavy = [words[i][j] for i, j in np.argwhere(rest > _RESTING)]
        if heavy:
            few = listed(heavy[:6]) + (f" and {len(heavy) - 6} more" if len(heavy) > 6 else "")
            out.append(f"More than half of the attention goes to special tokens in {few}.")
    out.append("Attention says what a head reads; only an ablation says whether it matters.")
    return out


def read_attention_map(ds: xr.Dataset, layer: int, head: int) -> list[str]:
    """Describe how far back a head looks."""
    weights = array(ds, "pattern", "query", "key", layer=layer, head=head)
    keys, queries = token_axis(ds, "key"), token_axis(ds, "query")
    if not len(keys.timed) or not len(queries.timed):
        return []
    part = weights[np.ix_(queries.timed, keys.timed)]
    resting = 1.0 - float(part.sum(axis=1).mean())
    if resting > _RESTING:
        # what is left for the steps says nothing of where a head looks
        return [f"Its queries give {percent(resting)} of their attention to special tokens, which stand for no step."]
    top = part.max(axis=1, keepdims=True)
    # a query whose largest weight several tokens share looks at none of them most
    clear = (part >= (1 - _ALIKE) * top).sum(axis=1) == 1
    if not clear.any():
        return ["None of its queries gives one token more of its attention than every other."]
    peak = keys.timed[part.argmax(axis=1)[clear]]
    back = queries.start[queries.timed][clear] - keys.start[peak]
    return [_looks(ds, keys, peak, back, len(part), float(top.mean()))]


def _looks(ds: xr.Dataset, keys: TokenAxis, peak: np.ndarray, back: np.ndarray, queries: int, mean: float) -> str:
    """Describe where queries look most: at one distance, at one token, or now here and now there.

    Args:
        peak, back: token and distance of the largest weight of each query that has one.
        queries: how many there are; mean: of their largest weights.
    """
    if queries == 1:
        where = f"{_place(ds, keys, int(peak[0]))}, {_lag(int(back[0]))}"
        return f"Of all steps its one query looks most at {where}, with a weight of {num(mean)}."
    (lag, at_lag), (token, at_token) = _commonest(back), _commonest(peak)
    average = f"the largest weight is {num(mean)} on average."
    often = max(at_lag, at_token)
    if often == 1 or often < _OFTEN * queries:
        return (
            f"Where its queries look most differs: no distance and no token has the largest weight of more than "
            f"{often} of {queries} queries; {average}"
        )
    if at_token > at_lag:
        where = _place(ds, keys, token)
        return f"{at_token} of its {queries} queries look most at {where}, whatever the distance; {average}"
    return f"Its queries look most often {_lag(lag)} (the largest weight of {at_lag} of {queries} queries); {average}"


def _commonest(values: np.ndarray) -> tuple[int, int]:
    """Return the most frequent value and its count."""
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()]), int(counts.max())


def _lag(back: int) -> str:
    """Write a distance in words, from the query to the key."""
    steps = f"{abs(back)} step{'s' * (abs(back) != 1)}"
    return f"{steps} back" if back > 0 else f"{steps} ahead" if back else "at the same step"


def _place(ds: xr.Dataset, keys: TokenAxis, token: int) -> str:
    """Write the steps that a token covers in words, with the date of the first where known."""
    words, time = keys.words(token), timeline(ds, 0)
    if time.stamps is None:
        return words
    first, last = int(keys.start[token]), int(keys.stop[token]) - 1
    return time.label(first) if first == last else f"{words} (from {time.date(first)})"


def _most_nats(pattern: np.ndarray) -> float:
    """Compute the entropy of even attention over visible keys, mean over queries. ``pattern``: (head, query, key).

    A query may see a key that any head of the layer gives a weight to: those of masked keys are exactly 0.
    """
    return float(np.log(np.maximum((pattern > 0).any(axis=0).sum(axis=-1), 1)).mean())


def head_entropy(pattern: np.ndarray) -> np.ndarray:
    """Compute the entropy in nats of every head, mean over queries. ``pattern``: (layer, head, query, key)."""
    logs = np.log(np.where(pattern > 0, pattern, 1.0))
    return 0.0 - (pattern * logs).sum(axis=-1).mean(axis=-1)


def read_head_entropy(ds: xr.Dataset) -> list[str]:
    """Describe the sharpest and the most diffuse head, and the layers with most sharp heads."""
    entropy, sharp = array(ds, "entropy", "layer", "head"), array(ds, "sharp", "layer", "head") > 0
    low, high = extremes(entropy)
    out = [
        f"Over all series the sharpest {is_head(ds, entropy, low, nats)} ({nats(entropy.flat[low])}), the most diffuse "
        f"{is_head(ds, entropy, high, nats)} ({nats(entropy.flat[high])})."
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


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate entropy, largest weight and weight on special tokens, means over queries, a row per head."""
    pattern = array(ds, "pattern", "layer", "head", "query", "key")
    layers, heads = names(ds, "layer"), names(ds, "head")
    table = pd.DataFrame({"layer": np.repeat(layers, len(heads)), "head": np.tile(heads, len(layers))})
    table["entropy_nats"] = head_entropy(pattern).ravel()
    table["largest_weight"] = pattern.max(axis=-1).mean(axis=-1).ravel()
    table["special_weight"] = pattern[..., token_axis(ds, "key").aside].sum(axis=-1).mean(axis=-1).ravel()
    return table


def pattern_table(ds: xr.Dataset, layer: int, head: int, least: float = 1e-4) -> pd.DataFrame:
    """Tabulate query–key pairs with at least ``least`` weight: what they cover, the weight."""
    weights = array(ds, "pattern", "query", "key", layer=layer, head=head)
    query, key = np.nonzero(weights >= least)
    columns: dict[str, np.ndarray] = {}
    for side, place in (("query", query), ("key", key)):
        axis = token_axis(ds, side)
        columns |= {
            f"{side}_start": axis.start[place],
            f"{side}_stop": axis.stop[place],
            f"{side}_special": axis.special[place],
        }
    return pd.DataFrame(columns | {"weight": weights[query, key]})


def _attention(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(attention_grid(ds), heads_table(ds), read_attention(ds))
    entropy = head_entropy(array(ds, "pattern", "layer", "head", "query", "key"))
    places = {"The sharpest head.": int(entropy.argmin()), "The most diffuse head.": int(entropy.argmax())}
    for words, place in places.items():
        layer, head = (int(v) for v in np.unravel_index(place, entropy.shape))
        fig = attention_map(ds, layer=names(ds, "layer")[layer], head=int(names(ds, "head")[head]))
        reading = [words, *read_attention_map(ds, layer, head)]
        yield Plate(fig, pattern_table(ds, layer, head), reading)


def _head_entropy(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(head_entropy_map(ds), frame(ds, "entropy", "normalised", "sharp"), read_head_entropy(ds))


def _patches(ds: xr.Dataset) -> Iterator[Plate]:
    table = frame(ds, "stable_rank", "entropy", "argmax_start", "argmax_weight")
    layer = names(ds, "layer")[-1]
    yield Plate(patch_attention_grid(ds, layer=layer), table, read_patches(ds))
    yield Plate(selected_patch(ds, layer=layer), table, [])


def read_patches(ds: xr.Dataset) -> list[str]:
    """Describe how many heads have a favourite patch, and where it is."""
    weight, start = (array(ds, name, "layer", "head") for name in ("argmax_weight", "argmax_start"))
    strong = weight > 0.5
    heads = int(strong.sum())
    out = [
        f"{count_of(heads, weight.size, 'heads')} {verb(heads, 'give')} more than half of "
        f"{verb(heads, 'their', 'its')} attention to one token over time."
    ]
    if strong.any():
        first, counts = np.unique(start[strong], return_counts=True)
        most = int(counts.argmax())
        out.append(f"The token from step {num(int(first[most]))} on is that of {int(counts[most])} of them.")
    return out


def maps_of(lens: Lens) -> Mapping[str, Options]:
    """Select the attention that a report shows, by name of the result: all over time of the stack that is read out."""
    stack = lens.wiring.output_stack
    kinds = dict.fromkeys(stack.attention_kinds())
    # one decoder token attends to itself alone, which shows nothing
    single = stack.name == "decoder" and lens.adapter.readout == "quantile"
    # attention between variates has no time axis, and one series has nobody to attend to
    in_time = {row.kind for layer in range(stack.n_layers) for row in stack.attentions(layer) if row.over == "time"}
    selection = [kind for kind in kinds if kind in in_time and not (single and kind == "self_attn")]
    return {f"attention_{kind}": {"kind": kind, "stack": stack.name} for kind in selection}


MEASUREMENTS = (
    Measurement(
        kind="attention",
        theme="Activations",
        about="what a head looks at, in time",
        heading="Attention",
        guide="How much of its attention each head gives to each token, drawn over the time that the token covers.",
        compute=on_first("attention_patterns", each=maps_of),
        plates=_attention,
        figures=(
            Figure("attention_map", "What one head of the last layer reads.", options={"layer": -1}),
            Figure("attention_grid", "What every head reads."),
        ),
    ),
    Measurement(
        kind="patch_attention",
        theme="Activations",
        about="attention between patches, with the stable rank of each head",
        heading="Attention between patches",
        guide="The attention of each forecast token over the tokens of the context, head by head.",
        compute=on_first("patch_attention"),
        plates=_patches,
        figures=(
            Figure("patch_attention_grid", "Attention matrices of the first layer, head by head."),
            Figure("selected_patch", "The patch that a head of the last layer selects."),
        ),
        source="tsfm-lens, figure 21",
        paper=("S3-F21",),
    ),
    Measurement(
        kind="head_entropy",
        theme="Activations",
        about="entropy of heads; sharp and diffuse ones",
        heading="Attention entropy",
        guide="How widely each head spreads its attention along the forecast: a sharp head reads few places, a diffuse "
        "one averages over many.",
        compute=on_all("head_entropy"),
        plates=_head_entropy,
        figures=(Figure("head_entropy_map", "How widely every head spreads its attention."),),
        helpers=("sharp_heads", "diffuse_heads", "row_entropy"),
        source="tsfm-lens, section 4",
        paper=("S3-HENT",),
    ),
)
