"""Attention sinks: tokens that take most of a head's attention, and what they are for.

A pattern shows that a head has a sink, not why. :func:`attention_sinks` finds the sinks
and changes each one in three ways, which tell apart heads that do nothing, heads that
add a constant, and heads that hand on what the token knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import (
    SMALLEST_SHARE,
    add_estimates,
    check_share,
    digest_series,
)
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import FEWEST, ratio
from tsfm_lens.hooks.activations import Activations, TokenSpans
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.hooks.weights import for_every_head
from tsfm_lens.hooks.wiring import Attention, Stack
from tsfm_lens.models.noise import (
    cached_flat_contexts,
    marked_dataset,
    noise_floor,
    ranges,
)
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import check_variates
from tsfm_lens.probes.sites import component_coords, put_value

__all__ = ["attention_sinks"]

START = "START"
"""Name of the token that a decoder begins with."""
LEAST_ODDS = 25.0
"""Odds of attention on a token, over those of an even share, from which it is a sink.

Odds do not depend on the number of keys. In untrained twins of the embedded models, at
most 5 % of the heads reach these (``tests/probes/test_attention_sinks.py``).
"""
FEWEST_KEYS = 8
"""Keys that a query must see to count.

Under a causal mask the first queries have little choice, and would favour the first
tokens.
"""
EFFECTS = ("value_zero", "value_mean", "masked", "head_zero")


@probe(
    title="Attention sinks",
    theme="Causes",
    summary="tokens that take most of a head's attention, and what they do",
    description=(
        "A sink is a token to which nearly all queries of a head attend. The head may "
        "do nothing there (nop), add a constant (bias), or hand on what differs from "
        "series to series (broadcast). Changing the token's value, or masking it, "
        "tells which."
    ),
    source="Xiao et al. 2024, arXiv:2309.17453",
    needs="heads",
)
def attention_sinks(
    run: Run,
    *,
    least: float = LEAST_ODDS,
    smallest: float = SMALLEST_SHARE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Find the attention sink of every head, and what it does to the forecast.

    Of each head, the token with most attention is looked at. Only queries that see 8
    keys or more count, and a series with fewer than 3 of them in a head counts in no
    sink of it. Attention between variates is left out.
    A sink is "nop" if its value does not matter but masking it does, "bias" if its
    value matters but not how it differs between series, "broadcast" if that matters,
    too, and "idle" if nothing of it matters. What matters moves the forecast by more
    than noise and ``smallest``, in the median over series. With a single series, "bias"
    and "broadcast" cannot be told apart.

    Args:
        run: the forecast to explain. A forecast over several passes is looked at in
            one.
        least: odds from which a token is a sink.
        smallest: change of a forecast, as a share of the series' range, that matters.
        progress: called with (done, of) after some changes.

    Returns:
        Dataset of kind "attention_sinks":

        - ``sink`` (component): "none", "nop", "bias", "broadcast", "idle", or
          "bias or broadcast" where there is one series.
        - ``mass``, ``even`` (component, series): mean attention on the token, and what
          a token had if each query attended to all its keys alike.
        - ``odds`` (component, series): of ``mass``, over the odds of ``even``; 1 for
          even attention. NaN where too few queries see enough keys.
        - ``further`` (component): number of other tokens that are sinks.
        - ``value_zero``, ``value_mean`` (component, series): mean change of the
          forecast over the series' range, with the token's value set to zero, and to
          its mean over series. NaN for heads without sink, and for series that are too
          short to have the token.
        - ``masked``, ``head_zero`` (component, series): the same with the token masked,
          so that attention goes to the other keys, and with the whole head at zero.

        The coordinates ``key``, ``key_start``, ``key_stop`` and ``key_special`` are the
        token, the steps that it covers, from the forecast start, and its name if it is
        special: such as "EOS", or "START" where a decoder begins with it.

        ``odds`` and the changes come with what :func:`.estimates.add_estimates` adds,
        the changes without a token model's first step.

    Source:
        Xiao et al. 2024, arXiv:2309.17453.

    Raises:
        InputError: ``least`` is not above 1, ``smallest`` is no share, several
            variates, no attention over time, or a horizon longer than one pass.

    Example:
        >>> data = probes.attention_sinks(run)
        >>> str(data["sink"].sel(component="encoder.0.self_attn.3").values)
        'bias or broadcast'
    """
    if not isinstance(least, Real) or not least > 1:
        raise InputError(f"least is {least!r}, expected odds above 1")
    check_share(smallest, "smallest")
    targets = check_variates(run, covariates=True)
    run = run.in_one_pass()
    rows = _distinct_rows(run, targets)
    branches = _branches(run)
    if not branches:
        raise InputError(
            f"{run.lens.model_id} has no attention over time, so it has no sinks"
        )
    recorded = run.record([name for branch in branches for name in branch.points])
    attended = [_attend(run, branch, recorded) for branch in branches]
    heads = [head for part in attended for head in part.strongest(rows, least)]
    data = marked_dataset(run, **component_coords([head.component for head in heads]))
    data = data.assign_coords(
        key=("component", [head.key for head in heads]),
        key_start=("component", [head.spans.start[head.key] for head in heads]),
        key_stop=("component", [head.spans.stop[head.key] for head in heads]),
        key_special=("component", [_name_special(run, head) for head in heads]),
    )
    axes = ("component", "series")
    for name in ("mass", "even", "odds"):
        data[name] = (axes, np.array([getattr(head, name) for head in heads]))
    data["further"] = ("component", [head.further for head in heads])
    data = add_estimates(data, "odds", floor=0.0, smallest=least)
    sinks = np.flatnonzero(data["odds_size"].values >= least)
    changes = np.full((len(EFFECTS), len(heads), *run.point.shape), np.nan)
    if len(sinks):
        variants = [
            variant
            for index in sinks
            for variant in _variants(run, heads[index], recorded, rows)
        ]
        forecasts = point_forecasts(run, variants, progress)
        by_sink = forecasts.reshape(len(sinks), len(EFFECTS), *run.point.shape)
        changes[:, sinks] = by_sink.swapaxes(0, 1)
    for index in sinks:
        # nothing is changed where the token is padding
        having = heads[index].having
        changes[:, index, ~having] = np.nan
        if having[rows].sum() < 2:
            # the mean over one series is its own value
            changes[EFFECTS.index("value_mean"), index] = np.nan
    steps = slice(run.first_step, None)
    spans = ranges(run, run.point)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        return ratio(np.abs(other - plain)[..., steps].mean(-1), spans)

    floor = noise_floor(run, share)
    for name, forecasts in zip(EFFECTS, changes, strict=True):
        data[name] = (axes, share(forecasts, run.point))
        data = add_estimates(data, name, floor=floor, smallest=smallest)
    data["sink"] = ("component", _name_sinks(data, max(smallest, _middle(floor, rows))))
    data.attrs = {
        "least": least,
        "smallest": smallest,
        "fewest_keys": FEWEST_KEYS,
        "statistic": run.statistic,
        "first_step": run.first_step,
    }
    return data


@dataclass(frozen=True)
class _Branch:
    """Attention over time of one layer."""

    stack: Stack
    layer: int
    attention: Attention

    @property
    def name(self) -> str:
        """What the names of its hook points begin with."""
        return f"{self.stack.prefix}.{self.layer}.{self.attention.kind}"

    @property
    def points(self) -> list[str]:
        """Hook points that its sinks are computed from."""
        hooks = ["hook_attn_scores", "hook_v", "hook_z"]
        if self.attention.gate:
            hooks.append("hook_gate")
        return [f"{self.name}.{hook}" for hook in hooks]


@dataclass(frozen=True)
class _HeadMass:
    """One head, and the token with most of its attention.

    ``mass``, ``even`` and ``odds`` are (series,) of that token, and ``having`` is true
    for series in which it is no padding; ``further`` is the number of other tokens that
    are sinks.
    """

    component: Component
    branch: _Branch
    spans: TokenSpans
    key: int
    mass: np.ndarray
    even: np.ndarray
    odds: np.ndarray
    having: np.ndarray
    further: int


@dataclass(frozen=True)
class _Attended:
    """Attention on tokens, ``mass`` (series, head, key); ``even`` has one key.

    ``shown`` (series, key) is true for keys that are no padding.
    """

    branch: _Branch
    spans: TokenSpans
    shown: np.ndarray
    mass: np.ndarray
    even: np.ndarray

    def strongest(self, rows: Sequence[int], least: float) -> Iterator[_HeadMass]:
        """Yield each head with its strongest token, in the median over ``rows``."""
        # all of the attention, in single precision, has finite odds
        rest = np.maximum(1 - self.mass, np.finfo(np.float32).eps)
        odds = self.mass / rest * (1 - self.even) / self.even
        # (head, key); series of which too few queries count have none
        counted = [row for row in rows if np.isfinite(odds[row]).any()]
        median = np.median(odds[counted or rows], axis=0)
        strongest = np.argmax(np.nan_to_num(median), axis=-1)
        for head, key in enumerate(strongest.tolist()):
            others = np.delete(median[head], key)
            yield _HeadMass(
                Component(
                    self.branch.stack.name,
                    self.branch.layer,
                    self.branch.attention.kind,
                    head,
                ),
                self.branch,
                self.spans,
                key,
                self.mass[:, head, key],
                self.even[:, head, 0],
                odds[:, head, key],
                self.shown[:, key],
                int((others >= least).sum()),
            )


def _branches(run: Run) -> list[_Branch]:
    """Return every attention over time of a model, in the order of its stacks."""
    return [
        _Branch(stack, layer, attention)
        for stack in run.lens.wiring.stacks
        for layer in range(stack.n_layers)
        for attention in stack.attentions(layer)
        if attention.over == "time"
    ]


def _name_special(run: Run, head: _HeadMass) -> str:
    """Name a head's token if it stands for no value of the series, else ""."""
    # a decoder of tokens reads the value before each step; before the first, there is
    # none of its own
    if run.tokens_read and head.key == 0 and head.spans.start[0] == 0:
        return START
    return head.spans.special[head.key]


def _distinct_rows(run: Run, targets: Sequence[int]) -> list[int]:
    """Return targets that are not flat, one of those that are equal.

    If all are flat, all targets are returned.
    """
    labels = digest_series(run.dataset())
    flat = cached_flat_contexts(run)
    first_rows = {labels[row]: row for row in reversed(targets) if not flat[row]}
    return sorted(first_rows.values()) or list(targets)


def _middle(floor: np.ndarray, rows: Sequence[int]) -> float:
    """Return the median of a noise floor (series,) over rows."""
    return float(np.median(floor[rows]))


def _attend(run: Run, branch: _Branch, recorded: Activations) -> _Attended:
    """Compute the mean attention on each token, over the queries that count."""
    visible, pattern = _pattern(recorded[f"{branch.name}.hook_attn_scores"])
    counts = visible.sum(dim=-1, keepdim=True)
    shown = run.encoded.shown(branch.stack.name).to(visible.device)
    # (series, head, query, 1)
    weights = ((counts >= FEWEST_KEYS) & shown[:, None, :, None]).double()
    n_queries = weights.sum(dim=-2, keepdim=True)
    weights = weights / n_queries.masked_fill(n_queries < FEWEST, torch.nan)
    # of a token that every query sees; one that few see is no sink
    even = 1 / counts.clamp(min=1)
    keys_from = branch.attention.keys_from or branch.stack.name
    return _Attended(
        branch,
        run.encoded.spans[keys_from],
        run.encoded.shown(keys_from).cpu().numpy(),
        (weights * pattern).sum(dim=-2).cpu().numpy(),
        (weights * even).sum(dim=-2).cpu().numpy(),
    )


def _pattern(scores: Tensor, hidden: int | None = None) -> tuple[Tensor, Tensor]:
    """Return which keys a query sees and its pattern, as the key ``hidden`` is masked.

    A query that sees no other key keeps its own. Both are (series, head, query, key),
    in double precision.
    """
    # libraries add the smallest number of the type, or one near it, to masked scores
    visible = scores > torch.finfo(scores.dtype).min / 2
    if hidden is not None:
        remaining = visible.clone()
        remaining[..., hidden] = False
        has_others = remaining.any(dim=-1, keepdim=True)
        visible = torch.where(has_others, remaining, visible)
    pattern = scores.double().masked_fill(~visible, -torch.inf).softmax(dim=-1)
    # a query without any key is one of padding
    return visible, pattern.nan_to_num(nan=0.0)


def _variants(
    run: Run, head: _HeadMass, recorded: Activations, rows: Sequence[int]
) -> list[Variant]:
    """Return the model under each of ``EFFECTS`` of one sink."""
    branch = head.branch
    index = head.component.head
    key = head.key
    assert index is not None
    scores = recorded[f"{branch.name}.hook_attn_scores"][:, [index]]
    z = recorded[f"{branch.name}.hook_z"]
    values = for_every_head(recorded[f"{branch.name}.hook_v"], z.shape[-2])
    # (series, key, d_head)
    values = values[:, :, index].double()
    pattern = _pattern(scores)[1][:, 0]
    masked = _pattern(scores, key)[1][:, 0]
    at_key = pattern[..., [key]]
    value = values[:, [key]]
    mean = value[[row for row in rows if head.having[row]]].mean(dim=0)
    # by how much the mixture of values changes, (series, query, d_head)
    changes = (
        at_key * -value,
        at_key * (mean - value),
        (masked - pattern) @ values,
    )
    variants = []
    for name, change in zip(EFFECTS, changes, strict=False):
        if branch.attention.gate:
            gate = recorded[f"{branch.name}.hook_gate"][:, :, index]
            change = change * gate.double().sigmoid()
        altered = z.clone()
        altered[:, :, index] += change.to(altered)
        patch = put_value(run, head.component, f"{branch.name}.hook_z", altered)
        variants.append(Variant(f"{name} {head.component}", (patch,)))
    zero = Variant(f"{EFFECTS[-1]} {head.component}", (Zero(head.component),))
    return [*variants, zero]


def _name_sinks(data: xr.Dataset, noise: float) -> np.ndarray:
    """Name what each component's sink is for, (component,)."""
    is_sink = data["odds_size"].values >= float(data["odds_p"].attrs["smallest"])
    value_acts = data["value_zero_size"].values > noise
    mean = data["value_mean_size"].values
    return np.select(
        [
            ~is_sink,
            value_acts & np.isnan(mean),
            value_acts & (mean > noise),
            value_acts,
            data["masked_size"].values > noise,
        ],
        ["none", "bias or broadcast", "broadcast", "bias", "nop"],
        "idle",
    )
