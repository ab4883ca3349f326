"""Orders in which the heads of a layer are ablated.

They follow scores of weights or activations, or are drawn at random. Read
:func:`rankings` first; :func:`head_scores` computes the scores, with their source as an
attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import attention_over_time, head_entropy
from tsfm_lens.probes.similarity import head_entropy_of_writes, mean_over_tokens
from tsfm_lens.probes.weights import head_spectra

# which scores come first, after the colon of an order's name
ENDS = ("low", "high")
# limit of random orders in one sweep; each takes as many runs as a named order
MOST_RANDOM = 1000


def needs_series(order: str) -> bool:
    """Test if the score of an order is measured on data."""
    return order.partition(":")[0] not in ("stable_rank", "random")


def parse_orders(texts: Iterable[str]) -> list[str]:
    """Expand names of orders, and return each once.

    "stable_rank" stands for both directions, "random:0..2" for three orders.

    Returns:
        Names of orders.
    """
    orders: list[str] = []
    for text in texts:
        name, _, rest = str(text).partition(":")
        if name not in ORDERS:
            examples = [f"{order}:low" for order in ORDERS[:-1]] + ["random:0"]
            raise unknown_name("order of heads", text, examples)
        if name == "random":
            orders += [f"{name}:{seed}" for seed in _seeds(text, rest)]
        elif rest and rest not in ENDS:
            raise unknown_name(
                "order of heads", text, [f"{name}:{end}" for end in ENDS]
            )
        else:
            orders += [f"{name}:{end}" for end in ([rest] if rest else ENDS)]
    return list(dict.fromkeys(orders))


def describe_order(order: str) -> str:
    """Describe an order: "low stable rank first", "random order 3"."""
    name, _, end = order.partition(":")
    if name == "random":
        return f"random order {end}"
    if end:
        return f"{end} {name.replace('_', ' ')} first"
    return f"by {name.replace('_', ' ')}"


def _seeds(text: str, rest: str) -> range:
    """Read the seeds of random orders, such as "0..2", from what follows the colon."""
    # nine digits at most: the length of a range beyond 64 bits is an OverflowError
    numbers = re.fullmatch(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?", rest)
    if numbers is None:
        raise InputError(
            f"a random order has a seed: {text!r} is to read like random:0, or"
            " random:0..9 for ten"
        )
    seeds = range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1)
    if not 1 <= len(seeds) <= MOST_RANDOM:
        raise InputError(
            f"{text!r} stands for {len(seeds)} random orders, expected 1 to"
            f" {MOST_RANDOM}"
        )
    return seeds


def head_scores(
    lens: Lens,
    order: str,
    series: Any = None,
    horizon: int | None = None,
    seed: int = 0,
    *,
    num_samples: int | None = None,
) -> xr.DataArray:
    """Score every head of the output stack, (layer, head).

    A score that is measured on data takes series, or a run of them.

    Returns:
        The scores, (layer, head).
    """
    if order not in ORDERS:
        raise unknown_name("order of heads", order, ORDERS)
    stack = lens.wiring.output_stack
    kind, layers = stack.find_layers(attention_over_time(stack))
    measure, source = _SCORES[order]
    if order == "random":
        ranks = [
            # a generator for each layer, so that its order does not depend on how many
            # layers come before it
            np.random.default_rng([seed, layer]).permutation(stack.n_heads)
            for layer in layers
        ]
        scores = _array(np.array(ranks, dtype=float), layers)
    elif measure is None:
        # the only other score that needs no data
        scores = head_spectra(lens, kind=kind, products=["QK"])["stable_rank"].sel(
            product="QK", drop=True
        )
    elif series is None:
        raise InputError(f"the order {order!r} is measured on data; give series")
    else:
        options: dict[str, Any] = {
            "rollout": False,
            "num_samples": num_samples,
            "seed": seed,
        }
        run = series
        if not isinstance(run, Run):
            run = lens.run(series, horizon, **options)
        scores = measure(run, kind)
    return scores.rename(order).assign_attrs(order=order, attention=kind, source=source)


def ranking(scores: xr.DataArray, layer: int, direction: str = "low") -> list[int]:
    """Rank the heads of a layer in the order in which they are ablated.

    Low or high scores come first; heads with equal scores are in the order of their
    indices.

    Returns:
        Indices of heads, the first to be ablated first.
    """
    row = scores.sel(layer=layer).values
    if not np.isfinite(row).all():
        undefined = int(np.flatnonzero(~np.isfinite(row))[0])
        raise InputError(
            f"head {undefined} of layer {layer} has no {scores.name}, as where its"
            " weights are zero"
        )
    # negated and not reversed, so that equal scores keep the order of indices
    keys = row if direction == "low" else -row
    return [int(head) for head in np.argsort(keys, kind="stable")]


def rankings(
    lens: Lens,
    orders: Iterable[str],
    series: Any = None,
    horizon: int | None = None,
    *,
    seed: int = 0,
) -> dict[str, dict[int, list[int]]]:
    """Rank the heads of every layer in several orders.

    Each score is measured once.

    Returns:
        Indices of heads by order and layer.
    """
    parsed = parse_orders(orders)
    # one run, whose records all scores share
    if series is not None and any(map(needs_series, parsed)):
        series = lens.run(series, horizon, rollout=False, seed=seed)
    # both directions of an order have the same scores
    scores_of = cache(partial(head_scores, lens, series=series))
    by_order = {}
    for order in parsed:
        # what follows the colon is a direction, or the seed of a random order
        name, _, suffix = order.partition(":")
        scores = scores_of(name, seed=int(suffix) if name == "random" else seed)
        direction = suffix if suffix in ENDS else "low"
        layers = [int(layer) for layer in scores["layer"].values]
        by_order[order] = {layer: ranking(scores, layer, direction) for layer in layers}
    return by_order


def _contribution(run: Run, kind: str) -> xr.DataArray:
    """Measure by how much each head raises the effective rank of all heads' writes."""
    entropies = mean_over_tokens(run, reduce=_entropies, kind=kind)
    # effective ranks; column 0 is of all heads, and column 1 + h of all but head h
    ranks = np.exp(entropies["over_all"].values)
    return _array(ranks[:, :1] - ranks[:, 1:], entropies["layer"].values)


def _entropies(writes: Tensor) -> Tensor:
    """Compute the entropy of all heads, and without each head in turn.

    ``writes`` is (…, head, d_model), the result (…, 1 + head).

    Returns:
        Entropies in nats, (…, 1 + head).
    """
    n_heads = writes.shape[-2]
    subsets = [
        [head for head in range(n_heads) if head != omitted]
        for omitted in range(n_heads)
    ]
    without = [head_entropy_of_writes(writes[..., subset, :]) for subset in subsets]
    return torch.stack([head_entropy_of_writes(writes), *without], dim=-1)


def _norm(run: Run, kind: str) -> xr.DataArray:
    """Measure the mean norm of what each head writes."""
    norms = mean_over_tokens(
        run, reduce=lambda writes: writes.double().norm(dim=-1), kind=kind, normed=True
    )
    # (layer, series, head): every series has the same weight, whatever its number of
    # tokens
    return _array(norms["mean"].values.mean(axis=1), norms["layer"].values)


def _array(values: np.ndarray, layers: Iterable[int]) -> xr.DataArray:
    coords = {"layer": list(layers), "head": range(values.shape[1])}
    return xr.DataArray(values, dims=("layer", "head"), coords=coords)


_SCORES: dict[str, tuple[Callable[[Run, str], xr.DataArray] | None, str]] = {
    "stable_rank": (None, "tsfm-lens paper, definition 5.1 (S3-SRANK)"),
    "entropic_contribution": (_contribution, "tsfm-lens paper, appendix E (S3-ERANK)"),
    "attention_entropy": (
        lambda run, kind: head_entropy(run, kind=kind)["entropy"].drop_attrs(),
        "tsfm-lens paper, section 4 (S3-HENT)",
    ),
    "output_norm": (_norm, "norm of the head's write"),
    "random": (None, "tsfm-lens paper, appendix B (S3-ORD)"),
}
"""Measure on data, if there is one, and source of each score."""
ORDERS = tuple(_SCORES)
