"""Attributions of forecasters whose answer is known: closed forms, planted mechanisms,
other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens import explain
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack, Wiring
from tsfm_lens.models import Lens, Run
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo import planted

STEPS = 24
HORIZON = 6
SEASON = 6
DEPTH = 600
EXACT = [
    "shapley",
    "occlusion",
    "inclusion",
    "integrated gradients",
    "gradient × input",
]
Rule = Callable[[Tensor, Tensor], Tensor]


class Known(nn.Module):
    """A forecast by a rule of the context (item, series, time) and the known future
    (item, series, step).
    """

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule
        block = nn.ModuleDict(
            {
                name: nn.Linear(2, 2)
                for name in ("attn", "q", "k", "v", "o", "mlp", "i", "out")
            }
        )
        # modules that a wiring names; none of them runs
        self.blocks = nn.ModuleList([block])
        self.embed = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)

    def forward(self, context: Tensor, future: Tensor) -> Tensor:
        middle = self.rule(torch.nan_to_num(context), torch.nan_to_num(future))
        return (middle[..., None, :] + torch.tensor([-1.0, 0.0, 1.0])[:, None]).flatten(
            0, 1
        )


class Wired(Adapter):
    """Items with their series side by side."""

    architecture = "known"
    context_length = STEPS
    prediction_length = HORIZON
    levels = (0.1, 0.5, 0.9)
    multivariate = True
    covariates = ("past", "known")

    def __init__(self, native: Known) -> None:
        self.native = self.model = native
        q, k, v, o = (Projection(name) for name in "qkvo")
        attention = Attention("attn", "attn", Site("attn"), Site("", "in"), q, k, v, o)
        mlp = Mlp(
            Site("mlp"),
            Site("", "in"),
            Site("i"),
            Site("out", "in"),
            "out",
            Projection("i", "d_mlp"),
        )
        stack = Stack(
            "", "blocks", 1, 1, 2, 2, 2, (attention, mlp), upstream=("embed",)
        )
        self.wiring = Wiring(
            "known", (stack,), Site("head", layout="batch pos d_out"), "embed", HORIZON
        )

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        count = batch.n_variates
        ahead = torch.tensor(batch.known_future(HORIZON)).float()
        context = torch.tensor(np.stack(batch.values)).float()
        inputs = {
            "context": context.unflatten(0, (-1, count)),
            "future": ahead.unflatten(0, (-1, count)),
        }
        spans = {"": TokenSpans.patches(-STEPS, STEPS // 2, 2)}
        zero = torch.zeros(len(batch))
        one = torch.ones(len(batch))
        return Encoded(inputs, spans, zero, one, batch, items=len(inputs["context"]))

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        return self.model(**inputs)


def known_run(rule: Rule, seed: int = 0) -> Run:
    """A run of that rule on a target with a past covariate "a" and a known one "k"."""
    rng = np.random.default_rng(seed)
    past = {name: rng.normal(size=STEPS) for name in "ak"}
    target = rng.normal(size=STEPS) + 3
    ahead = {"k": rng.normal(size=HORIZON)}
    item = {"target": target, "past_covariates": past, "future_covariates": ahead}
    return Lens(Wired(Known(rule)), "known").run(
        as_series([item], seasonality=SEASON), HORIZON
    )


def linear(seed: int = 0) -> tuple[Rule, np.ndarray]:
    """A linear rule, and its weights (step, series, time + horizon) of context and
    future.
    """
    rng = torch.Generator().manual_seed(seed)
    past, ahead = (
        torch.randn(HORIZON, 3, width, generator=rng) / 5 for width in (STEPS, HORIZON)
    )

    def rule(context: Tensor, future: Tensor) -> Tensor:
        made = torch.einsum("isc,hsc->ih", context, past) + torch.einsum(
            "isc,hsc->ih", future, ahead
        )
        return made[:, None].expand(-1, 3, -1)

    return rule, torch.cat([past, ahead], -1).numpy()


def linear_answer(
    run: Run, parts: tuple[explain.Segment, ...], reference: str, weights: np.ndarray
) -> np.ndarray:
    """(segment, step): weights (step, series, time + horizon) times the distance from
    the reference.
    """
    stands = np.nan_to_num(
        np.stack(explain.reference_values(run.batch, reference, HORIZON))
    )
    inputs = np.concatenate(
        [np.stack(run.batch.values), np.nan_to_num(run.batch.known_future(HORIZON))], 1
    )
    moved = weights * (inputs - stands)
    return np.stack(
        [
            moved[:, part.row, part.start + STEPS : part.stop + STEPS].sum(-1)
            for part in parts
        ]
    )


@pytest.mark.parametrize("reference", explain.REFERENCES)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("others", ["past and future", "stretches"])
def test_a_linear_forecaster(method: str, reference: str, others: str) -> None:
    rule, weights = linear()
    run = known_run(rule)
    parts = explain.segments(run, parts=3, others=others)
    if reference == "missing" and method in EXACT[3:]:
        expect_error(
            "missing values, towards which there is no gradient",
            explain.input_attribution,
            run,
            method=method,
            reference=reference,
            parts=parts,
        )
        return
    found = explain.input_attribution(
        run, method=method, reference=reference, parts=parts
    )
    answer = linear_answer(run, parts, reference, weights)
    for level in run.lens.levels:
        got = found["attribution"].sel(quantile=level)
        close_in_float32(
            got, answer, depth=DEPTH, magnitude=10.0, what=f"{method} at {level}"
        )
    close_in_float32(found["remainder"], 0.0, depth=DEPTH, magnitude=10.0)


@pytest.mark.parametrize("method", EXACT)
def test_additive_parts_get_their_linear_weights(method: str) -> None:
    """A linear forecaster gives additive parts their weights."""
    rule, weights = linear()
    run = known_run(rule)
    parts = explain.components(run, events={"dip": (-9, -6)}, seasons=[4, SEASON])
    found = explain.input_attribution(run, method=method, reference="zero", parts=parts)
    additive = [part for part in parts if part.values is not None]
    assert [part.name.rpartition(", ")[2] for part in additive] == [
        "trend",
        "season of 4",
        "season of 6",
        "dip",
        "rest",
    ]
    answer = [
        weights[:, 0, part.start + STEPS : part.stop + STEPS] @ part.values
        for part in additive
    ]
    got = found["attribution"].sel(quantile=0.5)[: len(additive)]
    close_in_float32(got, np.stack(answer), depth=DEPTH, magnitude=10.0, what=method)
    close_in_float32(found["remainder"], 0.0, depth=DEPTH, magnitude=10.0)


def test_seasonal_naive_copies_each_last_season() -> None:
    """Seasonal naive copies the last season of each additive part."""

    def copies(context: Tensor, _future: Tensor) -> Tensor:
        return context[:, :1, -SEASON:].expand(-1, 3, -1)

    line = 5 + 0.5 * np.arange(STEPS)
    season = np.resize([3.0, -1.0, 2.0, -2.0, 1.0, -3.0], STEPS)
    given = {
        "target": line + season,
        "past_covariates": {"a": season},
        "future_covariates": {"k": np.zeros(HORIZON)},
    }
    given["past_covariates"]["k"] = season
    run = Lens(Wired(Known(copies)), "known").run(
        as_series([given], seasonality=SEASON), HORIZON
    )
    found = explain.input_attribution(
        run, reference="seasonal naive", parts="components"
    ).sel(quantile=0.5)
    answer = np.stack(
        [(line - line.mean())[-SEASON:], season[-SEASON:], *np.zeros((4, SEASON))]
    )
    tolerances = {"depth": DEPTH, "magnitude": 20.0, "dtype": torch.float32}
    assert_close(found["attribution"], answer, **tolerances)
    assert_close(found["reference_forecast"], line.mean(), **tolerances)


def product(context: Tensor, future: Tensor) -> Tensor:
    """The target's last value times the covariate's future, plus the past covariate's
    last value.
    """
    made = context[:, :1, -1:] * future[:, 2:] + context[:, 1:2, -1:]
    return made.expand(-1, 3, -1)


def test_interactions_of_two_inputs_are_told() -> None:
    """What two inputs do only together is told."""
    run = known_run(product)
    both = run.batch.values[0][-1] * run.batch.futures[2]
    single = np.full(HORIZON, run.batch.values[1][-1])
    halves = np.stack([0 * both, both / 2, single, 0 * both, both / 2])
    wholes = np.stack([0 * both, both, single, 0 * both, both])
    parts = (
        explain.Segment("early", 0, -STEPS, -1, "past"),
        explain.Segment("last", 0, -1, 0, "past"),
        *explain.segments(run, parts=1)[1:],
    )
    answers = {
        "shapley": halves,
        "integrated gradients": halves,
        "gradient × input": wholes,
        "occlusion": wholes,
    }
    answers["inclusion"] = wholes - np.stack([0 * both, both, 0 * both, 0 * both, both])
    for method, answer in answers.items():
        found = explain.input_attribution(
            run, method=method, reference="zero", parts=parts
        )
        got = found["attribution"].sel(quantile=0.5)
        close_in_float32(got, answer, depth=DEPTH, magnitude=20.0, what=method)
        rest = both + single - answer.sum(0)
        close_in_float32(
            found["remainder"].sel(quantile=0.5), rest, depth=DEPTH, magnitude=20.0
        )


def test_one_target_of_several_is_explained() -> None:
    values = np.random.default_rng(0).normal(size=(2, STEPS))

    def swapped(context: Tensor, _future: Tensor) -> Tensor:
        return context.flip(1)[..., -SEASON:]

    batch = as_series(values[None], variates=None)
    run = Lens(Wired(Known(swapped)), "known").run(batch, HORIZON)
    found = explain.input_attribution(
        run, reference="zero", target=1, parts={"parts": 1, "others": "whole"}
    )
    assert list(found.kind.values) == ["past", "variate"]
    got = found["attribution"].sel(quantile=0.5)
    answer = np.stack([np.zeros(HORIZON), values[0, -SEASON:]])
    close_in_float32(got, answer, depth=DEPTH, magnitude=10.0)


@pytest.mark.parametrize("mechanism", ["seasonal-copy", "local-mean"])
def test_a_planted_mechanism_of_the_past(mechanism: str) -> None:
    made = planted.plant(mechanism, "chronos-bolt")
    rule = made.card.rule
    horizon = made.card.horizon
    (context,) = planted.draw_contexts(rule, 1, made.card.context, seed=4)
    run = made.lens().run(context, horizon)
    found = explain.input_attribution(run, reference="seasonal naive", parts=4)
    stands = explain.reference_values(run.batch, "seasonal naive", horizon)[0][
        : len(context)
    ]
    moved = rule.inputs(context, horizon) * (context - stands)
    parts = zip(
        found.start.values + len(context), found.stop.values + len(context), strict=True
    )
    answer = np.stack([moved[:, start:stop].sum(-1) for start, stop in parts])
    # the card tells how far the planted model is from its rule, in mean absolute
    # values, here for each of 16 masks
    allowed = 2 * made.card.error * np.abs(context).mean()
    assert np.abs(found["attribution"].sel(quantile=0.5) - answer).max() <= allowed
