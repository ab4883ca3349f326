"""Methods that score tokens of the context as the source of a forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tsfm_lens import probes
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.models.run import Run
from tsfm_lens.studies.method_scores.marks import Labels, Scores
from tsfm_lens.studies.method_scores.methods import Found, differentiable, method
from tsfm_lens.studies.method_scores.series import Bench
from tsfm_lens.zoo.planted.rules import CovariateTimes

Array = NDArray[np.float64]
INPUTS = "inputs"


def token_name(series: int, token: int) -> str:
    """Name a token of a series; tokens of all series are candidates."""
    return f"{series}:{token}"


def tokens_of(bench: Bench) -> tuple[str, list[int]]:
    """Return the stack that reads the context, and its tokens that show some of it."""
    stack = bench.lens.wiring.stacks[0].name
    spans = bench.clean.spans[stack]
    return stack, [i for i in range(len(spans)) if not spans.special[i] and spans.stop[i] <= 0]


def true_tokens(bench: Bench) -> dict[str, bool]:
    """Label by token name whether the rule reads any value that the token shows."""
    rule = bench.card.rule
    assert not isinstance(rule, CovariateTimes)
    stack, tokens = tokens_of(bench)
    spans, labels = bench.clean.spans[stack], {}
    for row, values in enumerate(bench.clean.batch.values):
        mask = np.abs(rule.inputs(np.asarray(values), bench.card.horizon)).sum(0) > 0
        for token in tokens:
            start, stop = (max(edge + len(values), 0) for edge in (spans.start[token], spans.stop[token]))
            labels[token_name(row, token)] = bool(mask[start:stop].any())
    return labels


def _token_scores(bench: Bench, scores: Array) -> Found:
    """Select, of scores (series, token), those of the tokens that show the context."""
    _, tokens = tokens_of(bench)
    names = tuple(token_name(row, token) for row in range(len(scores)) for token in tokens)
    return Found(names, scores[:, tokens].reshape(-1))


def _each(bench: Bench, of: Callable[[Run], Array]) -> Found:
    return _token_scores(bench, np.stack([of(bench.clean.select(i)) for i in range(len(bench.clean.batch))]))


def _query_tokens(run: Run, spans: TokenSpans) -> list[int]:
    """List the tokens that a forecast is read from: those that cover it, otherwise the last one."""
    ahead = [i for i in range(len(spans)) if spans.stop[i] > 0]
    return ahead or [len(spans) - 1]


def _cross(run: Run, of: xr.DataArray) -> Array:
    """Average (key,) over layers, heads and the tokens that a forecast is read from."""
    queries = _query_tokens(run, run.encoded.spans[run.lens.wiring.output_stack.name])
    return np.asarray(of.mean(("layer", "head")).isel(query=queries).mean("query").values, dtype=float)


@method("attention, mean over heads", INPUTS)
def _attention(bench: Bench) -> Found:
    return _each(bench, lambda run: _cross(run, probes.attention_patterns(run)["pattern"]))


@method("norm-weighted attention", INPUTS)
def _norm_weighted(bench: Bench) -> Found:
    return _each(bench, lambda run: _cross(run, probes.norm_weighted_attention(run)["norm"]))


@method("attention roll-out", INPUTS)
def _flow(bench: Bench) -> Found:
    """Score by Abnar and Zuidema's roll-out, behind the mean cross-attention if the context has its own stack."""

    def flow(run: Run) -> Array:
        own, out = bench.lens.wiring.stacks[0].name, bench.lens.wiring.output_stack.name
        rollout = probes.attention_flow(run, stack=own)["flow"].values[-1]
        if own == out:
            return np.asarray(rollout[_query_tokens(run, run.encoded.spans[own])].mean(0))
        return np.asarray(_cross(run, probes.attention_patterns(run)["pattern"]) @ rollout)

    return _each(bench, flow)


def _shift(bench: Bench, probe: Callable[..., xr.Dataset], name: str, **how: Any) -> Found:
    """Score tokens by how far their embedding, put into the other run, moves the forecast."""
    stack = bench.lens.wiring.stacks[0]
    at = [f"{stack.prefix}.0.hook_resid_pre"]
    options: dict[str, Any] = {"at": at, "positions": "each", "direction": "noise", **how}
    data = probe(bench.clean, bench.corrupted, **options)
    scores = np.full((len(bench.clean.batch), len(bench.clean.spans[stack.name])), np.nan)
    scores[:, data["position"].values] = np.abs(data[name].isel(component=0).transpose("series", "position").values)
    return _token_scores(bench, scores)


@method("activation patching of tokens", INPUTS)
def _patching(bench: Bench) -> Found:
    return _shift(bench, probes.activation_patching, "recovered")


@method("attribution patching of tokens", INPUTS, applies=differentiable)
def _attribution(bench: Bench) -> Found:
    return _shift(bench, probes.attribution_patching, "first_order", exact=False)


def by_series(names: tuple[str, ...], scores: Scores, labels: Labels) -> list[tuple[Scores, Labels]]:
    """Split scores and labels by series."""
    rows = np.array([int(name.split(":")[0]) for name in names])
    return [(scores[rows == row], labels[rows == row]) for row in np.unique(rows)]
