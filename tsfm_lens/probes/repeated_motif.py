"""Motif matching in values: the repeated-tokens test for every model.

:func:`repeated_motif` repeats random values, whole tokens long, so that patch models
can be tested too; :func:`training_history` follows its scores, or those of
``induction``, over checkpoints. The test says where heads attend; which of them the
forecast needs is for ``zero_ablation`` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio_units
from tsfm_lens.data import as_series
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import relative_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import pick_attention, row_entropy, token_steps
from tsfm_lens.probes.given import check_option
from tsfm_lens.probes.induction import induction_scores

__all__ = ["repeated_motif", "training_history"]


TARGETS = ("after_last", "last", "after_any")
# of a motif by default, in tokens
LONGEST = 8
_SOURCE = (
    "Olsson et al. 2022 (induction heads), in values; tsfm-lens paper, appendix G"
    " (S3-RRT, S3-PREF)"
)


@dataclass(frozen=True)
class _Plan:
    """Sizes of a test.

    ``low`` and ``high`` bound the motifs in tokens; ``patch`` is the steps of a token,
    ``steps`` those of the forecast.
    """

    low: int
    high: int
    patch: int
    repeats: int
    count: int
    steps: int


@probe(
    "lens",
    title="Repeated motifs",
    theme="Behaviour",
    summary="repeated random motif in values, for every model, with a control",
    description=(
        "A motif of random values is repeated. Attention to its last instance is "
        "compared with attention to the same steps of a series without repeats."
    ),
    source="after Olsson et al. 2022",
    needs="heads",
    computes="repeated_motif, on series of its own",
    example={"n_series": 3},
)
def repeated_motif(
    lens: Lens,
    *,
    motif: int | tuple[int, int] | None = None,
    repeats: int = 4,
    n_series: int = 16,
    horizon: int | None = None,
    kind: str | None = None,
    queries: str | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Repeat random values, and measure which heads attend to what followed them.

    Motifs are independent standard normal values, a whole number of tokens long. As a
    control, every head is tested at the same positions of series that repeat nothing.
    The right key of a context token is the patch after its last match. That of a
    forecasting token covers its forecast steps, a whole number of motifs earlier.

    Args:
        lens: the model.
        motif: length in tokens, or shortest and longest; if None, from half of what
            fits (at most 8) to that length.
        repeats: repeats of the longest motif; shorter ones occur more often in the same
            context.
        n_series: random motifs.
        horizon: forecast steps; the model's own, at most the longest motif, if None.
        kind: kind of attention; the last one over time of the output stack if None.
        queries: "forecast" for the tokens that a forecast is read from, "context" for
            those of the last repeat. None means the former if the stack has such
            tokens, else the latter.
        num_samples: of the forecasts.
        seed: of motifs and forecasts.

    Returns:
        Dataset of kind "repeated_motif":

        - ``prefix_matching`` (target, layer, head): mean attention to the tokens that
          followed the last match ("after_last"), to the match itself ("last"), and to
          what followed any match ("after_any").
        - ``control`` (target, layer, head): the same in series that repeat nothing.
        - ``advantage`` (target, layer, head): the difference, with what
          :func:`.estimates.add_estimates` adds for each target.
        - ``chance`` (target): of uniform attention over the keys that a query may see.
        - ``entropy_share`` (layer, head): entropy over that of uniform attention.
        - ``motif_length`` (series): in steps.
        - ``context`` (series, time), ``truth``, ``forecast`` (series, step): values.
        - ``copy_error``, ``naive_error`` (series): mean absolute errors of the forecast
          and of the context's mean against the motif's continuation. Models of token
          ids have none.
        - ``relative_copy_error`` (series): their ratio.

    Source:
        Olsson et al. 2022; tsfm-lens paper, appendix G, which tests tokens only
        (S3-RRT, S3-PREF).

    Raises:
        InputError: the motifs do not fit, an option is other than above, or tokens
            differ in length.
        UnknownNameError: no such kind of attention.

    Example:
        >>> probes.repeated_motif(lens, n_series=4, num_samples=1)["advantage"].dims
        ('target', 'layer', 'head')
    """
    column, attention, layers = pick_attention(lens, None, kind)
    keys_from = column.attention(attention, layers[0]).keys_from or column.name
    patch = _token_steps(lens, keys_from)
    low, high = _lengths(lens, motif, repeats, patch)
    if n_series < 1:
        raise InputError(f"n_series is {n_series}, expected 1 or more")
    if horizon is None:
        steps = min(lens.prediction_length, high * patch)
    else:
        steps = int(horizon)
    plan = _Plan(low, high, patch, repeats, n_series, steps)
    context, future, lengths = _draw(lens, plan, seed)
    options = {
        "rollout": False,
        "num_samples": num_samples,
        "seed": seed,
    }
    # both are forced along their own continuation, so that what a decoder reads does
    # not depend on what the model forecasts
    run = lens.run(context, steps, truth=future, forced_path=future, **options)
    context, future, _ = _draw(lens, plan, seed, repeating=False)
    control = lens.run(context, steps, forced_path=future, **options)
    targets = _targets(run.encoded, column, keys_from, lengths, plan, queries)
    points = [f"{column.prefix}.{layer}.{attention}.hook_pattern" for layer in layers]
    repeating, entropies, chance = _masses(run, points, targets)
    without, _, _ = _masses(control, points, targets)
    data = run.dataset().assign_coords(
        target=list(TARGETS), layer=list(layers), head=range(column.n_heads)
    )
    axes = ("target", "layer", "head")
    data = data.assign(
        prefix_matching=(axes, repeating.mean(-1)),
        control=(axes, without.mean(-1)),
        advantage=(axes, (repeating - without).mean(-1)),
        chance=("target", chance),
        entropy_share=(axes[1:], entropies),
        motif_length=("series", lengths, {"units": "steps"}),
        forecast=(("series", "step"), run.forecast.median),
    )
    # ids have no distance from one another
    if not lens.takes_ids:
        truth = data["truth"].values
        mean = data["context"].mean("time").values[:, None]
        error = mae(data["forecast"].values, truth)
        naive = mae(np.broadcast_to(mean, truth.shape), truth)
        errors = {
            "copy_error": error,
            "naive_error": naive,
            "relative_copy_error": error / naive,
        }
        data = data.assign(
            {name: ("series", values) for name, values in errors.items()}
        )
    data.attrs = {
        "motif": [low, high],
        "repeats": repeats,
        "n_series": n_series,
        "patch": patch,
        "attention": attention,
        "stack": column.name,
    }
    advantage = xr.DataArray(repeating - without, dims=(*axes, "series"))
    return add_estimates(
        data,
        "advantage",
        floor=relative_rounding(lens),
        groups="target",
        values=advantage,
    )


def _token_steps(lens: Lens, stack: str) -> int:
    """Return the number of steps that one token of a stack shows."""
    # random values will do: the steps that a token covers do not depend on them
    values = _values(lens, np.random.default_rng(0), (1, min(lens.context_length, 256)))
    start, stop, ordinary = token_steps(lens.encode(as_series(values)).spans[stack])
    widths = sorted(set((stop - start)[ordinary].tolist()))
    if len(widths) != 1:
        raise InputError(
            f"the tokens of {lens.model_id} show {widths} steps; a motif needs tokens"
            " of one length"
        )
    return int(widths[0])


def _lengths(
    lens: Lens, motif: int | tuple[int, int] | None, repeats: int, patch: int
) -> tuple[int, int]:
    """Return the shortest and the longest motif, in tokens."""
    room = lens.context_length // (max(repeats, 1) * patch)
    longest = min(LONGEST, room)
    if motif is None:
        low = max(longest // 2, 2)
        high = longest
    elif isinstance(motif, int):
        low = motif
        high = motif
    else:
        low, high = motif
    if repeats < 2 or not 2 <= low <= high <= room:
        raise InputError(
            f"motifs of {low} to {high} tokens × repeats {repeats} do not fit: expected"
            f" motifs of 2 or more tokens and 2 or more repeats; at {patch} steps a"
            f" token, the context of {lens.context_length} steps has room for {room}"
            " tokens a motif"
        )
    return low, high


def _values(lens: Lens, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return independent random values.

    They are standard normal, or token ids where a model takes those.
    """
    if lens.takes_ids:
        return rng.choice(lens.example_ids, shape)
    return rng.standard_normal(shape)


def _draw(
    lens: Lens, plan: _Plan, seed: int, *, repeating: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return contexts (series, time), continuations (series, step), motif lengths.

    Lengths are (series,), in steps. If not ``repeating``, all values are noise.
    """
    rng = np.random.default_rng(seed)
    # every length equally often, in random order
    tokens = plan.low + np.arange(plan.count) % (plan.high - plan.low + 1)
    lengths = rng.permutation(tokens) * plan.patch
    context = plan.repeats * plan.high * plan.patch
    full = np.empty((plan.count, context + plan.steps))
    for series, length in enumerate(lengths):
        motif = _values(lens, rng, (length,))
        # the context ends at the end of a motif, and may begin within one
        full[series] = motif[np.arange(-context, plan.steps) % length]
    if not repeating:
        full = _values(lens, rng, full.shape)
    return full[:, :context], full[:, context:], lengths


def _targets(
    encoded: Encoded,
    stack: Stack,
    keys_from: str,
    lengths: np.ndarray,
    plan: _Plan,
    queries: str | None,
) -> np.ndarray:
    """Return the keys that each query should attend to, (target, series, query, key).

    A query has none if it has nothing to match.
    """
    starts, stops, ordinary = token_steps(encoded.spans[stack.name])
    key_starts, key_stops, timed = token_steps(encoded.spans[keys_from])
    tokens = {
        # a token may end beyond the forecast, but must begin in it
        "forecast": ordinary & (starts >= 0) & (starts < plan.steps),
        "context": ordinary & (stops <= 0),
    }
    mode = queries or ("forecast" if tokens["forecast"].any() else "context")
    check_option("queries", mode, ("forecast", "context"))
    if mode == "forecast":
        possible = bool(tokens["forecast"].any())
        alternative = "context"
    else:
        possible = keys_from == stack.name
        alternative = "forecast"
    if not possible:
        raise InputError(
            f"no token of the {stack.name or 'model'} is a {mode} query; choose"
            f" queries={alternative!r}"
        )
    key_by_start = {
        int(key_starts[key]): int(key)
        for key in np.flatnonzero(timed & (key_stops <= 0))
    }
    targets = np.zeros(
        (len(TARGETS), len(lengths), len(starts), len(key_starts)), dtype=bool
    )
    for series, length in enumerate(lengths):
        for query in np.flatnonzero(tokens[mode]):
            # the steps that come next from a query's point of view
            first = int(starts[query])
            last = int(stops[query])
            if mode == "context":
                # only the last repeat
                if first < -length:
                    continue
                first = last
                last = last + plan.patch
            # the steps of a second motif in one token would have the keys of the first
            last = min(last, first + int(length))
            _mark(
                targets[:, series, query],
                key_by_start,
                range(first, last, plan.patch),
                int(length),
                plan.patch,
            )
    return targets


def _mark(
    targets: np.ndarray,
    key_by_start: dict[int, int],
    starts: range,
    length: int,
    patch: int,
) -> None:
    """Set the targets (target, key) of one query that forecasts ``starts``.

    The query should attend to what came a whole number of motifs before them.
    """
    for number, start in enumerate(starts):
        # the fewest motifs back that lie in the context, where a patch ends at step 0
        # or before; -(-a // b) rounds up
        latest = start - max(-(-(start + patch) // length), 1) * length
        keys = []
        earlier = latest
        while earlier in key_by_start:
            keys.append(key_by_start[earlier])
            earlier -= length
        if not keys:
            continue
        # in the order of TARGETS: after the last match, the match itself, after any
        # match
        targets[0, keys[0]] = True
        targets[2, keys] = True
        # the match itself is the token before the first one that is looked for
        if number == 0 and latest - patch in key_by_start:
            targets[1, key_by_start[latest - patch]] = True


def _masses(
    run: Run, points: list[str], targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return attention to targets, its entropy, and what uniform attention would give.

    They are (target, layer, head, series), shares (layer, head), and (target,).
    """
    activations = run.record(points)
    # queries that have a match
    series, query = np.nonzero(targets[0].any(axis=-1))
    # (target, pair of series and query, key)
    target_mask = targets[:, series, query].astype(float)
    counts = np.bincount(series, minlength=targets.shape[1])
    # (series, pair), sums the pairs of each series
    membership = (series == np.arange(len(counts))[:, None]).astype(float)
    masses = []
    entropies = []
    visible = np.zeros(targets.shape[2:], dtype=bool)
    for point in points:
        pattern = activations[point].cpu().double().numpy()
        weights = np.einsum("nhk,tnk->thn", pattern[series, :, query], target_mask)
        # units by series whose mean is the mean over all queries, however many a series
        # has
        masses.append(ratio_units(weights @ membership.T, counts))
        entropies.append(row_entropy(pattern[series, :, query]))
        # a key without any weight is masked
        visible |= (pattern > 0).any(axis=(0, 1))
    keys = visible[query]
    # a query that sees one key has entropy 0, which log 2 divides as well as any number
    uniform_entropy = np.log(np.maximum(keys.sum(-1), 2))[:, None]
    shares = (targets[:, series, query] & keys).sum(-1) / np.maximum(keys.sum(-1), 1)
    entropy_share = (np.stack(entropies) / uniform_entropy).mean(axis=1)
    return np.stack(masses, axis=1), entropy_share, shares.mean(axis=-1)


def training_history(
    checkpoints: Mapping[int, Lens],
    *,
    losses: Mapping[int, float] | None = None,
    name: str = "",
    seed: int = 0,
    **options: Any,
) -> xr.Dataset:
    """Score the heads of every checkpoint on the same repeated motifs.

    The probe is :func:`tsfm_lens.probes.induction_scores`, with forced decoding, for
    token models with cross-attention. It is :func:`tsfm_lens.probes.repeated_motif` for
    others.

    Args:
        checkpoints: lens by optimiser step; each is read from the mapping once and then
            released.
        losses: training loss by step, at these steps or others.
        name: of the model that was trained; that of its last checkpoint if "".
        seed: of the motifs.
        options: of the probe: ``motif`` and ``repeats``; of token models with
            cross-attention ``n_sequences``, ``offset``, ``positions``, ``within``,
            ``prefix_from`` and ``copy_from``; of others ``n_series``, ``horizon``,
            ``kind``, ``queries`` and ``num_samples``.

    Returns:
        Dataset of kind "training_history". Scores have ``_low``, ``_high`` and
        ``_significant``.

        - ``prefix_matching``, ``copy_score`` (training_step, layer, head): of token
          models.
        - ``prefix_floor`` (training_step): of token models.
        - ``advantage`` (training_step, layer, head): of other models.
        - ``entropy_share`` (training_step, layer, head): entropy of attention rows over
          that of uniform attention.
        - ``copying`` (training_step): share of right tokens for token models, 1 less
          the relative copy error for others.
        - ``loss`` (loss_step): training loss.

    Raises:
        InputError: no checkpoints, they are not of one shape, or the motifs do not fit
            the model.

    Source:
        After Olsson et al. 2022, who watch induction heads form over training.

    Example:
        >>> data = probes.training_history({0: lens}, n_sequences=4, motif=8)
        >>> data["prefix_matching"].dims
        ('training_step', 'layer', 'head')
    """
    if not checkpoints:
        raise InputError("no checkpoints: expected at least one lens by optimiser step")
    steps = sorted(checkpoints)
    scores: list[xr.Dataset] = []
    for step in steps:
        lens = checkpoints[step]
        is_token_model = (
            lens.tokens is not None
            and "cross_attn" in lens.wiring.output_stack.attention_kinds()
        )
        if is_token_model:
            score = _score_tokens(lens, seed, options)
        else:
            score = _score_values(lens, seed, options)
        scores.append(score)
        shape = tuple(score["entropy_share"].shape)
        first = tuple(scores[0]["entropy_share"].shape)
        if shape != first:
            raise InputError(
                f"the checkpoint of step {step} has {shape} layers and heads, that of"
                f" {steps[0]} {first}"
            )
    # "all", so that variables without a dimension get one, too; the attributes of
    # checkpoints differ, and "override" takes those of the first
    data = xr.concat(
        scores, dim="training_step", data_vars="all", combine_attrs="override"
    )
    data = data.assign_coords(training_step=steps)
    if losses:
        loss_steps = sorted(losses)
        data["loss"] = (("loss_step",), np.array([losses[step] for step in loss_steps]))
        data = data.assign_coords(loss_step=loss_steps)
    data.attrs |= {"kind": "training_history", "title": "Heads over training"}
    data.attrs["source"] = (
        "after Olsson et al. 2022, arXiv:2209.11895 (induction over training)"
    )
    data.attrs["model"] = name or scores[-1].attrs["model"]
    return data


def _score_tokens(lens: Lens, seed: int, options: dict[str, Any]) -> xr.Dataset:
    """Compute the scores of a checkpoint by :func:`.induction_scores`."""
    result = induction_scores(
        lens, seed=seed, **{"decoding": "forced", "positions": "all", **options}
    )
    # the context's tokens, and the end token
    keys = result.attrs["motif"] * result.attrs["repeats"] + 1
    return result[
        _with_interval("prefix_matching") + _with_interval("copy_score")
    ].assign(
        prefix_floor=1.0 / keys,
        copying=result["copy_accuracy"],
        entropy_share=(result["entropy"] / np.log(keys)).drop_attrs(),
    )


def _score_values(lens: Lens, seed: int, options: dict[str, Any]) -> xr.Dataset:
    """Compute the scores of a checkpoint by :func:`repeated_motif`."""
    result = repeated_motif(lens, seed=seed, **options)
    scores = result[_with_interval("advantage")].sel(target="after_last", drop=True)
    if "relative_copy_error" in result:
        scores["copying"] = 1.0 - result["relative_copy_error"].mean("series")
    return scores.assign(entropy_share=result["entropy_share"])


def _with_interval(name: str) -> list[str]:
    """Return the variables of an effect that figures over training draw."""
    return [name, *(f"{name}_{part}" for part in ("low", "high", "significant"))]
