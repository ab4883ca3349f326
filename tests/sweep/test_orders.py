"""Scores of heads against independent computations, and the orders made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, archetypes, lens_of
from tsfm_lens.data import SeriesBatch, as_series, bundled
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import heads_by_stable_rank
from tsfm_lens.probes.attention import attention_over_time, pick_attention
from tsfm_lens.sweep.planner.orders import (
    ORDERS,
    head_scores,
    parse_orders,
    ranking,
    rankings,
)


def make_series(lens: Lens) -> SeriesBatch:
    example = getattr(lens.adapter, "example", None)
    if example:
        return as_series(example(2, 40))
    return bundled("co2", "elnino").tail(40)


def options(lens: Lens) -> dict:
    return {"horizon": 6, "num_samples": 2 if lens.adapter.readout == "token" else None}


def head_writes(
    lens: Lens, series: SeriesBatch, horizon: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Head writes (row, pos, head, d_model) of the last layer: what reaches the stream,
    and what the output matrix gives before any norm; and which tokens show a series."""
    stack = lens.wiring.output_stack
    kind, layers = stack.find_layers(attention_over_time(stack))
    runs = lens.run(
        series, horizon, rollout=False, num_samples=options(lens)["num_samples"]
    )
    result, z = (
        f"{stack.prefix}.{layers[-1]}.{kind}.{point}"
        for point in ("hook_result", "hook_z")
    )
    with torch.no_grad():
        _, activations = lens.run_with_cache(runs.encoded, names_filter=[result, z])
        matrix = lens.weights.heads(layers[-1], kind, stack.name).W_O.double().numpy()
    plain = np.einsum("rphd,hdm->rphm", activations[z].double().numpy(), matrix)
    return (
        activations[result].double().numpy(),
        plain,
        runs.encoded.shown(stack.name).numpy(),
    )


def numpy_rank(writes: np.ndarray, selected: np.ndarray) -> float:
    """Entropic rank of one layer's writes (row, pos, head, d_model), by the singular
    values of the unit writes.
    """
    entropies = []
    for token in writes[selected]:
        unit = token / np.maximum(np.linalg.norm(token, axis=-1, keepdims=True), 1e-8)
        p = np.linalg.svd(unit, compute_uv=False)
        p = p / p.sum()
        entropies.append(-(p * np.log(np.maximum(p, 1e-8))).sum())
    return float(np.exp(np.mean(entropies)))


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_every_score_of_every_architecture(name: str) -> None:
    lens = lens_of(name)
    stack = lens.wiring.output_stack
    kind, layers = stack.find_layers(attention_over_time(stack))
    # of unequal lengths where a model takes single series, so that some tokens only pad
    series = make_series(lens)
    if not lens.adapter.multivariate and not hasattr(lens.adapter, "example"):
        series = SeriesBatch.concat(
            [bundled("co2").tail(40), bundled("elnino").tail(19)]
        )
    arguments = {"series": series, **options(lens)}
    found = {order: head_scores(lens, order, **arguments) for order in ORDERS}
    for order, scores in found.items():
        over_time = pick_attention(lens, None, kind)[2]
        expected = layers
        if order == "attention_entropy":
            expected = over_time
        assert scores["layer"].values.tolist() == list(expected), order
        assert scores.sizes["head"] == stack.n_heads
        assert np.isfinite(scores).all()
        assert scores.attrs["attention"] == kind
    weights = lens.weights.heads(layers[-1], kind, stack.name)
    dense = (
        (weights.W_Q.double() @ weights.W_K.double().transpose(-2, -1)).detach().numpy()
    )
    values = np.linalg.svd(dense, compute_uv=False)
    close_in_float32(
        found["stable_rank"][-1], (values**2).sum(-1) / values[:, 0] ** 2, depth=1000
    )
    last, plain, visible = head_writes(lens, series, 6)
    norms = [
        np.linalg.norm(row[mask], axis=-1).mean(0)
        for row, mask in zip(last, visible, strict=True)
    ]
    close_in_float32(found["output_norm"][-1], np.mean(norms, axis=0), depth=1000)
    full = numpy_rank(plain, visible)
    parts = [
        numpy_rank(np.delete(plain, head, axis=2), visible)
        for head in range(stack.n_heads)
    ]
    lost = full - np.array(parts)
    close_in_float32(
        found["entropic_contribution"][-1], lost, depth=1000, magnitude=full
    )


def test_rankings_agree_with_the_chosen_heads() -> None:
    """Rankings name the first head to go and agree with the choice of heads."""
    lens = load("bolt-nano")
    found = rankings(lens, ["stable_rank", "random:0..2"])
    assert list(found) == [
        "stable_rank:low",
        "stable_rank:high",
        "random:0",
        "random:1",
        "random:2",
    ]
    for layer in range(3):
        assert found["stable_rank:low"][layer] == found["stable_rank:high"][layer][::-1]
        for retained in range(5):
            going = found["stable_rank:low"][layer][: 4 - retained]
            chosen = heads_by_stable_rank(
                lens, {layer: retained}, order="low", paired=False
            )
            assert sorted(going) == sorted(component.head for component in chosen)
        assert sorted(found["random:1"][layer]) == [0, 1, 2, 3]
    assert len({str(found[f"random:{seed}"]) for seed in range(3)}) > 1
    # a layer's random order depends on the seed and the layer alone
    assert found["random:1"] == rankings(lens, ["random:1"])["random:1"]


def test_ties_and_missing_scores_in_rankings() -> None:
    """Ties are broken by index, and missing scores are refused."""
    coords = {"layer": [0, 1], "head": range(3)}
    scores = xr.DataArray(
        [[2.0, 1.0, 1.0], [1.0, np.nan, 0.0]],
        dims=("layer", "head"),
        coords=coords,
        name="stable_rank",
    )
    assert ranking(scores, 0, "low") == [1, 2, 0]
    assert ranking(scores, 0, "high") == [0, 1, 2]
    expect_error("head 1 of layer 1 has no stable_rank", ranking, scores, 1)


def test_orders_read_as_they_print() -> None:
    orders = parse_orders(
        ["output_norm:high", "stable_rank", "random:7", "stable_rank:low"]
    )
    assert orders == [
        "output_norm:high",
        "stable_rank:low",
        "stable_rank:high",
        "random:7",
    ]
    assert parse_orders(orders) == orders
    expect_error("stable_rank:low", parse_orders, ["stablerank:low"])
    expect_error("stable_rank:high", parse_orders, ["stable_rank:hi"])
    expect_error("random:0", parse_orders, ["random"])


def test_unmeasurable_orders_say_why() -> None:
    """Orders that cannot be measured are refused with the reason."""
    lens = lens_of("chronos-bolt")
    expect_error("give series", head_scores, lens, "output_norm")
    expect_error("stable_rank", head_scores, lens, "stable")
