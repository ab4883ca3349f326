"""Motif matching in values: the repeated-tokens test for every model, patch models included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import relative_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import pick_attention, row_entropy
from tsfm_lens.probes.findings import judge
from tsfm_lens.registry import probe
from tsfm_lens.stats import ratio_units

__all__ = ["repeated_motif"]

TARGETS = ("after_last", "last", "after_any")
LONGEST = 8  # tokens of a motif by default

_SOURCE = "Olsson et al. 2022 (induction heads), in values; tsfm-lens paper, appendix G (S3-RRT, S3-PREF)"


@dataclass(frozen=True)
class _Plan:
    """Sizes of a test: bounds of the motifs in tokens, steps of a token and of the forecast."""

    low: int
    high: int
    patch: int
    repeats: int
    count: int
    noise: float
    steps: int


@probe("repeated_motif", "lens", words="repeated_motif, on series of its own")
def repeated_motif(
    lens: Lens,
    *,
    motif: int | tuple[int, int] | None = None,
    repeats: int = 4,
    n_series: int = 16,
    noise: float = 0.0,
    horizon: int | None = None,
    kind: str | None = None,
    queries: str | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Repeat random values, and measure which heads look at what followed the last match.

    Motifs are independent standard normal values, a whole number of tokens long, so that a patch repeats value by
    value. Their lengths differ from series to series. Every head is tested a second time on series that repeat nothing,
    at the same places: a head that reads at a fixed lag, whatever is there, has no ``advantage``.

    A query's target depends on its token. A token that shows a patch of the context looks for the patch after the last
    match. A token that a forecast is read from looks for the steps that it forecasts, a whole number of motifs earlier.
    Where one token forecasts many patches (Chronos-Bolt), it looks for all of these, up to one motif.

    Attention is not effect: in planted Chronos models an idle head that looks where the copying head looks stands out,
    too. It does not by the copy score of :func:`tsfm_lens.probes.induction_scores`.

    Args:
        lens: the model.
        motif: length in tokens, or shortest and longest; half of what fits (at most 8) to that one if None.
        repeats: times that the longest motif occurs; shorter ones fill the same context more often.
        n_series: random motifs.
        noise: standard deviation of the noise added to every context value, in those of the motif.
        horizon: forecast steps; the model's own, at most the longest motif, if None.
        kind: kind of attention; the last one over time of the stack that is read out if None.
        queries: "forecast" for the tokens that a forecast is read from, "context" for those that show the last
            repeat; None takes the former where the stack has such tokens, else the latter.
        num_samples: of the forecasts.
        seed: of motifs and forecasts.

    Returns:
        Dataset of kind "repeated_motif". ``prefix_matching`` (target, layer, head): mean attention to the tokens that
        followed the last match ("after_last"), to the match itself ("last"), and to what followed any match
        ("after_any"); ``control``, the same places in series that repeat nothing; ``advantage``, the difference, with
        what :func:`tsfm_lens.probes.findings.judge` adds: leaders are found for each target;
        ``chance`` (target), what an even spread over all keys that a query may see would pay. ``entropy_share`` (layer,
        head), the entropy of those queries' attention over that of an even spread. ``copy_error`` and
        ``naive_error`` (series), the mean absolute error of the forecast and of the context's mean against the
        motif's continuation, and ``relative_copy_error``, their ratio: 0 is a perfect copy, 1 no better than the
        mean. (Not for models of token ids.) ``motif_length`` (series) in steps; ``context``, ``truth``,
        ``forecast``.

    Source:
        Olsson et al. 2022; tsfm-lens paper, appendix G, which tests tokens only (S3-RRT, S3-PREF).

    Raises:
        InputError: the motifs do not fit, an option is not as above, or tokens are not all of one length.
        UnknownNameError: no such kind of attention.

    Example:
        >>> probes.repeated_motif(lens, n_series=4, num_samples=1)["advantage"].dims
        ('target', 'layer', 'head')
    """
    row, attention, layers = pick_attention(lens, None, kind)
    keys_from = row.attention(attention, layers[0]).keys_from or row.name
    patch = _token_steps(lens, keys_from)
    low, high = _lengths(lens, motif, repeats, patch)
    if n_series < 1 or noise < 0:
        raise InputError(f"n_series {n_series} and noise {noise}: expected 1 or more series and a noise of 0 or more")
    steps = min(lens.prediction_length, high * patch) if horizon is None else int(horizon)
    plan = _Plan(low, high, patch, repeats, n_series, float(noise), steps)
    context, future, lengths = _draw(lens, plan, seed)
    options: dict[str, Any] = {"rollout": False, "num_samples": num_samples, "seed": seed}
    run = lens.run(context, steps, truth=future, forced_path=future, **options)
    context, future, _ = _draw(lens, plan, seed, repeating=False)
    control = lens.run(context, steps, forced_path=future, **options)
    places = _targets(run.encoded, row, keys_from, lengths, plan, queries)
    points = [f"{row.prefix}.{layer}.{attention}.hook_pattern" for layer in layers]
    plain, entropies, visible = _masses(run, points, places)
    other, _, _ = _masses(control, points, places)
    data = run.dataset().assign_coords(target=list(TARGETS), layer=list(map(str, layers)), head=range(row.n_heads))
    where = ("target", "layer", "head")
    data["prefix_matching"] = (where, plain.mean(-1))
    data["control"] = (where, other.mean(-1))
    data["advantage"] = (where, (plain - other).mean(-1))
    data["chance"] = (("target",), _chance(places, visible))
    data["entropy_share"] = (("layer", "head"), entropies)
    data["motif_length"] = (("series",), lengths, {"units": "steps"})
    data["forecast"] = (("series", "step"), run.forecast.median)
    if not lens.takes_ids:
        data = _add_copy_errors(data)
    settings: dict[str, Any] = {"motif": [low, high], "repeats": repeats, "n_series": n_series, "patch": patch}
    settings |= {"noise": noise, "attention": attention, "stack": row.name}
    data.attrs = run.describe("repeated_motif", "Repeated motifs", _SOURCE, **settings)
    advantage = xr.DataArray(plain - other, dims=(*where, "series"))
    return judge(data, "advantage", floor=relative_rounding(lens), groups="target", values=advantage)


def _token_steps(lens: Lens, stack: str) -> int:
    """Return the number of steps that one token of a stack shows."""
    values = _values(lens, np.random.default_rng(0), (1, min(lens.context_length, 256)))
    spans = lens.encode(as_series(values)).spans[stack]
    widths = {
        stop - start for start, stop, word in zip(spans.start, spans.stop, spans.special, strict=True) if not word
    }
    if len(widths) != 1:
        raise InputError(
            f"the tokens of {lens.model_id} show {sorted(widths)} steps; a motif of whole tokens needs tokens of one "
            "length"
        )
    return widths.pop()


def _lengths(lens: Lens, motif: int | tuple[int, int] | None, repeats: int, patch: int) -> tuple[int, int]:
    """Return the shortest and the longest motif, in tokens."""
    room = lens.context_length // (max(repeats, 1) * patch)
    longest = min(LONGEST, room)
    bounds = (max(longest // 2, 2), longest) if motif is None else motif
    low, high = (bounds, bounds) if isinstance(bounds, int) else bounds
    if repeats < 2 or not 2 <= low <= high <= room:
        raise InputError(
            f"motifs of {low} to {high} tokens × repeats {repeats} do not fit: expected motifs of 2 or more tokens and "
            f"2 or more repeats; at {patch} steps a token, the context of {lens.context_length} steps has "
            f"room for {room} tokens a motif"
        )
    return low, high


def _values(lens: Lens, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw independent random values: standard normal, or token ids where a model takes those."""
    if lens.takes_ids:
        return rng.choice(lens.example_ids, shape)
    return rng.standard_normal(shape)


def _draw(lens: Lens, plan: _Plan, seed: int, *, repeating: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw contexts (series, time), continuations (series, step) and lengths (series,) of repeated motifs or noise."""
    rng = np.random.default_rng(seed)
    # every length equally often, in random order
    lengths = rng.permutation(plan.low + np.arange(plan.count) % (plan.high - plan.low + 1)) * plan.patch
    context = plan.repeats * plan.high * plan.patch
    whole = np.empty((plan.count, context + plan.steps))
    for series, length in enumerate(lengths):
        shape = _values(lens, rng, (length,))
        # the context ends at the end of a motif, and may begin within one
        whole[series] = shape[np.arange(-context, plan.steps) % length]
    if not repeating:
        whole = _values(lens, rng, whole.shape)
    values = whole[:, :context]
    if plan.noise:
        if lens.takes_ids:
            raise InputError(f"{lens.model_id} takes token ids, to which no noise can be added; leave noise out")
        values = values + plan.noise * rng.standard_normal(values.shape)
    return values, whole[:, context:], lengths


def _targets(
    encoded: Encoded, row: Stack, keys_from: str, lengths: np.ndarray, plan: _Plan, queries: str | None
) -> np.ndarray:
    """Mark the keys that each query should look at, (target, series, query, key); none for queries without a place."""
    query_spans, key_spans = encoded.spans[row.name], encoded.spans[keys_from]
    is_forecast = [
        not word and 0 <= start < plan.steps for start, word in zip(query_spans.start, query_spans.special, strict=True)
    ]
    mode = queries or ("forecast" if any(is_forecast) else "context")
    is_context = [not word and stop <= 0 for stop, word in zip(query_spans.stop, query_spans.special, strict=True)]
    if mode not in ("forecast", "context"):
        raise InputError(f"queries={queries!r} is not known, choose 'forecast' or 'context'")
    possible = any(is_forecast) if mode == "forecast" else keys_from == row.name
    if not possible:
        other = "context" if mode == "forecast" else "forecast"
        raise InputError(f"no token of the {row.name or 'model'} is a {mode} query; choose queries={other!r}")
    keys = enumerate(zip(key_spans.start, key_spans.stop, key_spans.special, strict=True))
    place = {start: index for index, (start, stop, word) in keys if not word and stop <= 0}
    out = np.zeros((len(TARGETS), len(lengths), len(query_spans), len(key_spans)), dtype=bool)
    for series, length in enumerate(lengths):
        for query in np.flatnonzero(is_forecast if mode == "forecast" else is_context):
            # the steps that come next from a query's point of view
            first, last = query_spans.start[query], query_spans.stop[query]
            if mode == "context":
                if first < -length:
                    continue
                first, last = last, last + plan.patch
            last = min(last, first + int(length))
            _mark(out[:, series, query], place, range(first, last, plan.patch), int(length), plan.patch)
    return out


def _mark(out: np.ndarray, place: dict[int, int], starts: range, length: int, patch: int) -> None:
    """Set the targets (target, key) of one query that looks for what came in place of ``starts``."""
    for number, start in enumerate(starts):
        # the fewest whole motifs back that lie in the context
        at = start - max(-(-(start + patch) // length), 1) * length
        matches = []
        while at in place:
            matches.append(at)
            at -= length
        if not matches:
            continue
        out[0, place[matches[0]]] = True
        out[2, [place[match] for match in matches]] = True
        if number == 0 and matches[0] - patch in place:
            out[1, place[matches[0] - patch]] = True


def _masses(run: Run, points: list[str], places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return attention to targets (target, layer, head, series), entropy shares, and a mask (query, key) of weights."""
    acts = run.record(points)
    series, query = np.nonzero(places[0].any(axis=-1))
    target_mask, counts = places[:, series, query].astype(float), np.bincount(series, minlength=places.shape[1])
    within = (series == np.arange(len(counts))[:, None]).astype(float)
    masses, entropies, visible = [], [], np.zeros(places.shape[2:], dtype=bool)
    for point in points:
        pattern = acts[point].cpu().double().numpy()
        weights = np.einsum("nhk,tnk->thn", pattern[series, :, query], target_mask)
        masses.append(ratio_units(weights @ within.T, counts))
        entropies.append(row_entropy(pattern[series, :, query]))
        visible |= (pattern > 0).any(axis=(0, 1))
    even = np.log(np.maximum(visible[query].sum(-1), 2))[:, None]
    return np.stack(masses, axis=1), (np.stack(entropies) / even).mean(axis=1), visible


def _chance(places: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Compute the share of the targets among the keys that each query may see, (target,)."""
    series, query = np.nonzero(places[0].any(axis=-1))
    keys = visible[query]
    return ((places[:, series, query] & keys).sum(-1) / np.maximum(keys.sum(-1), 1)).mean(axis=-1)


def _add_copy_errors(data: xr.Dataset) -> xr.Dataset:
    """Add the forecast's error against the motif's continuation, and over that of the context's mean."""
    truth, mean = data["truth"].values, data["context"].mean("time").values[:, None]
    error, naive = mae(data["forecast"].values, truth), mae(np.broadcast_to(mean, truth.shape), truth)
    data["copy_error"] = (("series",), error)
    data["naive_error"] = (("series",), naive)
    data["relative_copy_error"] = (("series",), error / naive)
    return data
