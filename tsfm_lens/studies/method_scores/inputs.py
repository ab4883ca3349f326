"""Methods that name what of the past a forecast comes from: tokens of the context."""

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
    """A candidate's name: tokens of all series are candidates, each series for itself."""
    return f"{series}:{token}"


def tokens_of(bench: Bench) -> tuple[str, list[int]]:
    """The stack that reads the context, and its tokens that show some of it."""
    stack = bench.lens.wiring.stacks[0].name
    spans = bench.clean.spans[stack]
    return stack, [i for i in range(len(spans)) if not spans.special[i] and spans.stop[i] <= 0]


def true_tokens(bench: Bench) -> dict[str, bool]:
    """Whether the rule reads any value that a token shows, by the token's name."""
    rule = bench.card.rule
    assert not isinstance(rule, CovariateTimes)
    stack, tokens = tokens_of(bench)
    spans, found = bench.clean.spans[stack], {}
    for row, values in enumerate(bench.clean.batch.values):
        read = np.abs(rule.inputs(np.asarray(values), bench.card.horizon)).sum(0) > 0
        for token in tokens:
            start, stop = (max(edge + len(values), 0) for edge in (spans.start[token], spans.stop[token]))
            found[token_name(row, token)] = bool(read[start:stop].any())
    return found


def _found(bench: Bench, scores: Array) -> Found:
    """Scores (series, token) of all tokens of the stack, as those of the tokens that show the context."""
    _, tokens = tokens_of(bench)
    names = tuple(token_name(row, token) for row in range(len(scores)) for token in tokens)
    return Found(names, scores[:, tokens].reshape(-1))


def _each(bench: Bench, of: Callable[[Run], Array]) -> Found:
    return _found(bench, np.stack([of(bench.clean.select(i)) for i in range(len(bench.clean.batch))]))


def _asking(run: Run, spans: TokenSpans) -> list[int]:
    """Tokens that a forecast is read from: those that cover it, otherwise the last one."""
    ahead = [i for i in range(len(spans)) if spans.stop[i] > 0]
    return ahead or [len(spans) - 1]


def _cross(run: Run, of: xr.DataArray) -> Array:
    """Means over layers, heads and the tokens that a forecast is read from, (key,)."""
    asking = _asking(run, run.encoded.spans[run.lens.wiring.output_stack.name])
    return np.asarray(of.mean(("layer", "head")).isel(query=asking).mean("query").values, dtype=float)


@method("attention, mean over heads", INPUTS)
def _attention(bench: Bench) -> Found:
    return _each(bench, lambda run: _cross(run, probes.attention_patterns(run)["pattern"]))


@method("norm-weighted attention", INPUTS)
def _weighted(bench: Bench) -> Found:
    return _each(bench, lambda run: _cross(run, probes.norm_weighted_attention(run)["norm"]))


@method("attention roll-out", INPUTS)
def _flow(bench: Bench) -> Found:
    """Abnar and Zuidema's; where the context has a stack of its own, behind the mean cross-attention."""

    def flow(run: Run) -> Array:
        own, out = bench.lens.wiring.stacks[0].name, bench.lens.wiring.output_stack.name
        rolled = probes.attention_flow(run, stack=own)["flow"].values[-1]
        if own == out:
            return np.asarray(rolled[_asking(run, run.encoded.spans[own])].mean(0))
        return np.asarray(_cross(run, probes.attention_patterns(run)["pattern"]) @ rolled)

    return _each(bench, flow)


def _moved(bench: Bench, probe: Callable[..., xr.Dataset], name: str, **how: Any) -> Found:
    """Tokens by how far their embedding, put into the other run, moves the forecast."""
    stack = bench.lens.wiring.stacks[0]
    at = [f"{stack.prefix}.0.hook_resid_pre"]
    options: dict[str, Any] = {"at": at, "positions": "each", "direction": "noise", **how}
    data = probe(bench.clean, bench.corrupted, **options)
    scores = np.full((len(bench.clean.batch), len(bench.clean.spans[stack.name])), np.nan)
    scores[:, data["position"].values] = np.abs(data[name].isel(component=0).transpose("series", "position").values)
    return _found(bench, scores)


@method("activation patching of tokens", INPUTS)
def _patched(bench: Bench) -> Found:
    return _moved(bench, probes.activation_patching, "recovered")


@method("attribution patching of tokens", INPUTS, applies=differentiable)
def _estimated(bench: Bench) -> Found:
    return _moved(bench, probes.attribution_patching, "first_order", exact=False)


def by_series(names: tuple[str, ...], scores: Scores, labels: Labels) -> list[tuple[Scores, Labels]]:
    """Scores and labels of each series' tokens for themselves."""
    rows = np.array([int(name.split(":")[0]) for name in names])
    return [(scores[rows == row], labels[rows == row]) for row in np.unique(rows)]
