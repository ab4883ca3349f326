"""Ablation effects, direct and total, and minimal circuits: what a forecast loses without parts of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae, relative_change, seasonal_scale, spearman_distance
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import Intervention, PatchFrom
from tsfm_lens.models.ablating import ablated_variants
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.noise import Measure, noise_floor, ranges, rounding, share_floor, told_apart
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import SMALLEST_SHARE, judge, refuse_no_share
from tsfm_lens.probes.given import refuse_word
from tsfm_lens.probes.patching import contrast
from tsfm_lens.probes.path_patching import edge_attribution
from tsfm_lens.probes.places import Place, component_coords, head_or_kind, later_branches, listed, nodes_of, place_of
from tsfm_lens.registry import probe

__all__ = ["ablation_effects", "causal_effects", "minimal_circuit"]


@probe("ablation")
def ablation_effects(
    run: Run,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate components one at a time and compare the forecasts.

    In single forwards a token model's decoder follows the run's path whatever is ablated; in rollouts every ablated
    model goes its own way, under the same draws. A part with a backup ranks low; see ``self_repair`` of
    :func:`tsfm_lens.probes.causal_effects`.

    Args:
        run: the forecast to explain; with a truth for the errors.
        components: names or globs; if None every head, MLP and whole layer of the stack that is read out.
        how: "zero", "mean", "resample" or "noise"; see :meth:`Lens.ablate`.
        reference: for mean and resample; draws take the run's seed.
        progress: called with (done, of) after each component.

    Returns:
        Dataset of kind "ablation" over ``component`` and ``series``: ``spearman_distance`` to the plain forecast; with
        a truth ``mae``, ``mase``, their baselines and relative changes (``mae_change`` = ablated / baseline - 1);
        ``mean_shift``, the mean distance from the plain forecast in data units; for each what
        :func:`tsfm_lens.probes.findings.judge` adds. A token model's first step, whose decoder reads no value, is left
        out of all, and has ``first_step_shift``. ``forecast`` and ``baseline_forecast``: see attribute ``statistic``.

    Source:
        tsfm-lens paper, section 3 (S3-ZA-H, S3-ZA-M, S3-ZA-L, S3-SPEAR).

    Raises:
        UnknownNameError: a component does not exist.

    Example:
        >>> data = probes.ablation_effects(run, components="decoder.*.mlp")
        >>> data["component"].values.tolist()
        ['decoder.0.mlp', 'decoder.1.mlp', 'decoder.2.mlp']
    """
    lens, stack = run.lens, run.lens.wiring.output_stack
    if components is None:
        targets = [*writers(lens.wiring), *(Component(stack.name, layer) for layer in range(stack.n_layers))]
        targets.sort(key=lambda c: (c.layer, c.kind is None, c.kind or "", c.head is None, c.head or 0))
    else:
        targets = lens.components(*listed(components, "components"))
    data = run.dataset().assign_coords(component_coords(targets))
    ablations = ablations_of(run, targets, how, reference)
    plain, forecasts = run.point, points_without(run, ablations, how, progress)
    where, later = ("component", "series"), slice(run.first_step, None)
    data = data.assign(forecast=((*where, "step"), forecasts), baseline_forecast=(("series", "step"), plain))
    source = "tsfm-lens paper, section 3 (S3-ZA, S3-SPEAR)"
    facts: dict[str, object] = {"how": how, "rollout": int(run.rollout), "statistic": run.statistic}
    data.attrs = run.describe("ablation", "Ablation effects", source, **facts)
    if later.start:
        data["first_step_shift"] = (where, np.abs(forecasts - plain)[..., 0])
    measures: dict[str, Measure] = {"spearman_distance": rank_distance} if run.horizon > 1 else {}
    measures["mean_shift"] = lambda other, plain: np.abs(other - plain).mean(axis=-1)
    if run.truth is not None:
        truth, scale = run.truth[..., later], seasonal_scales(run.batch)
        error, baseline = mae(forecasts[..., later], truth), mae(plain[..., later], truth)
        data = data.assign(mae=(where, error), mase=(where, error / scale))
        data = data.assign(mae_baseline=("series", baseline), mase_baseline=("series", baseline / scale))
        change: Measure = lambda other, plain: relative_change(mae(other, truth), mae(plain, truth))  # noqa: E731
        measures |= {"mae_change": change, "mase_change": change}
    for name, measure in measures.items():
        effect = measure(forecasts[..., later], plain[..., later])
        # the scale is the same before and after, so MASE changes as MAE does wherever it is defined
        data[name] = (where, np.where(np.isfinite(scale), effect, np.nan) if name == "mase_change" else effect)
        floor = noise_floor(run, size_of(measure, later))
        data = judge(data, name, floor=floor, signed=name.endswith("change"), groups=head_or_kind(data))
    return data


def rank_distance(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Compute Spearman's distance of forecasts (…, step) from plain ones, (…)."""
    return spearman_distance(other, np.broadcast_to(plain, other.shape))


def size_of(measure: Measure, steps: slice = slice(None)) -> Measure:
    """Return the absolute value of a measure, over some of the steps."""
    return lambda other, plain: np.abs(measure(other[..., steps], plain[..., steps]))


def points_without(
    run: Run,
    ablations: Mapping[Component, tuple[Intervention, ...]],
    how: str,
    progress: Progress | None = None,
    *,
    beside: Sequence[Variant] = (),
) -> np.ndarray:
    """Forecast without each component, and behind them with further variants, (variant, series, step)."""
    # the caller's own hooks may change before the next call
    shares = how == "zero" and not run.lens.registry.in_use
    cache: dict[Component, np.ndarray] = run.cache.setdefault("ablated", {}) if shares else {}
    missing = {component: parts for component, parts in ablations.items() if component not in cache}
    variants = [Variant(str(component), parts) for component, parts in missing.items()]
    new = [*variants, *beside]
    forecasts = point_forecasts(run, new, progress) if new else np.empty((0, len(run.batch), run.horizon))
    cache |= dict(zip(missing, forecasts, strict=False))
    return np.array([*(cache[component] for component in ablations), *forecasts[len(missing) :]])


def ablations_of(
    run: Run, components: Sequence[Component], how: str, reference: Any
) -> dict[Component, tuple[Intervention, ...]]:
    """Return the interventions that ablate each component, with the run's seed."""
    ready = reference is None or isinstance(reference, Activations | Encoded)
    if not ready and how == "resample" and run.tokens_read and not run.rollout:
        reference = run.lens.run(reference, run.horizon, rollout=False).encoded
    interventions = ablated_variants(run.lens, components, how, reference, horizon=run.horizon, seed=run.seed)
    return dict(zip(components, interventions, strict=True))


def seasonal_scales(batch: SeriesBatch) -> np.ndarray:
    """Return the scale of MASE of each series, (series,)."""
    return np.array([seasonal_scale(*each) for each in zip(batch.values, batch.seasonalities, strict=True)])


_OF_EFFECTS = "Pearl 2001 (direct and indirect effects); McGrath et al. 2023, arXiv:2307.15771; Rushing and Nanda 2024"


@probe("effects")
def causal_effects(
    run: Run,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    smallest: float = SMALLEST_SHARE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate each component twice: with all later branches free to respond, and with them held at what they wrote.

    The total effect is the change of the forecast with everything free, the direct effect that with every later branch
    of the stack held, the indirect effect their difference. Sharp logits saturate and hide direct effects.

    Args:
        run: the forecast to explain; in rollouts, a held branch writes what it wrote in the same plain pass.
        components: heads, branches or layers, by name or glob; heads and MLPs of the stack that is read out if None.
        how, reference: what takes a component's place; see :meth:`Lens.ablate`. Draws take the run's seed.
        smallest: self-repair is undefined for direct effects whose mean size is up to this share of the series' range.
        progress: called with (done, of).

    Returns:
        Dataset of kind "effects" over (component, series, step), in data units: ``total``, ``direct``, ``indirect``;
        over (component, series) ``total_share`` and ``direct_share``, their mean sizes over the range of context and
        forecast, and ``self_repair`` = 1 - <total, direct> / <direct, direct>, NaN where the direct effect is no larger
        than the noise floor or ``smallest``; for each what :func:`tsfm_lens.probes.findings.judge` adds, without a
        token model's first step (attribute ``first_step``). ``plain_forecast`` (series, step).

    Source:
        Pearl 2001; McGrath et al. 2023 (self-repair of ablated layers); Rushing and Nanda 2024.

    Raises:
        InputError: ``smallest`` is no share.
        UnknownNameError: no such component.

    Example:
        >>> data = probes.causal_effects(run, components="decoder.*.mlp")
        >>> sorted(name for name in data if "_" not in str(name))
        ['context', 'direct', 'indirect', 'total', 'truth']
    """
    refuse_no_share(smallest, "smallest")
    lens = run.lens
    targets = writers(lens.wiring) if components is None else lens.components(*listed(components, "components"))
    data = run.dataset().assign_coords(component_coords(targets))
    behind = {c: [b for b in later_branches(lens.wiring, c) if b.stack == c.stack] for c in targets}
    branches = sorted({place_of(lens.wiring, branch).point for each in behind.values() for branch in each})
    acts = run.record(branches or ["unembed.hook_out"])
    free = ablations_of(run, targets, how, reference)
    variants = [
        Variant(f"direct {component}", (*ablations, *(PatchFrom(branch, acts) for branch in behind[component])))
        for component, ablations in free.items()
    ]
    forecasts, plain = points_without(run, free, how, progress, beside=variants), run.point
    total, direct = forecasts[: len(targets)] - plain, forecasts[len(targets) :] - plain
    axes = ("component", "series", "step")
    parts = {"total": (axes, total), "direct": (axes, direct.copy()), "indirect": (axes, total - direct)}
    data = data.assign(parts | {"plain_forecast": (axes[1:], plain)})
    facts: dict[str, object] = {"how": how, "rollout": int(run.rollout), "statistic": run.statistic}
    facts |= {"smallest": smallest, "first_step": run.first_step}
    data.attrs = run.describe("effects", "Direct and total effects", _OF_EFFECTS, **facts)
    later, wide, heads = slice(run.first_step, None), ranges(run, plain), head_or_kind(data)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        size = np.abs(other - plain)[..., later].mean(-1)
        return np.divide(size, wide, out=np.zeros_like(size), where=wide > 0)

    floor = noise_floor(run, share)
    for name, part in (("total_share", total), ("direct_share", direct)):
        data[name] = (axes[:2], share(part, np.zeros(run.horizon)))
        data = judge(data, name, floor=floor, groups=heads)
    none = data["direct_share"].values <= np.fmax(floor, smallest)
    data["self_repair"] = (axes[:2], self_repair(total[..., later], direct[..., later], none))
    direct[..., : later.start] = 0.0
    floors = xr.DataArray(share_floor(run, direct), dims=axes[:2])
    return judge(data, "self_repair", floor=floors, signed=True, groups=heads)


def self_repair(total: np.ndarray, direct: np.ndarray, none: np.ndarray) -> np.ndarray:
    """Compute the share of a direct effect that later components undo."""
    size = np.square(direct).sum(-1)
    valid = ~none & (size > 0)
    share = np.divide((total * direct).sum(-1), size, out=np.full(size.shape, np.nan), where=valid)
    return 1.0 - share


_OF_CIRCUITS = "Wang et al. 2022, arXiv:2211.00593; Conmy et al. 2023; Syed et al. 2023; Marks et al. 2024"
Ablations = dict[Component, tuple[Intervention, ...]]
Behaviour = Callable[[np.ndarray], np.ndarray]
"""Map of forecasts (…, series, step) to the features that a circuit keeps, (…, series, feature)."""


@probe("circuit", "pair")
def minimal_circuit(
    clean: Run,
    corrupted: Run | None = None,
    *,
    ranking: str = "greedy",
    tolerance: float = 0.1,
    behaviour: Behaviour | None = None,
    nodes: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    per_round: int = 1,
    smallest: float = SMALLEST_SHARE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Remove components as long as the behaviour stays within a tolerance.

    Faithfulness of a set of components is 1 - d(set, model) / d(nothing, model), with everything outside the set
    ablated and d the root mean square difference of the behaviour.

    Args:
        clean: the run in which the behaviour shows.
        corrupted: run, made alike, without what the circuit is for; gives what nodes outside take, if not None.
        ranking: "greedy" removes, round by round, the component that lowers faithfulness least; "effects" and "edges"
            take the shortest faithful list, ranked by ablating each alone, or by the size of outgoing edges.
        tolerance: allowed loss of faithfulness, averaged over the series that have a verdict.
        behaviour: what must be kept of a forecast; the forecast itself if None.
        nodes: heads and branches to choose from; all heads and MLPs of the stack that is read out if None.
        how, reference: see :meth:`Lens.ablate`; only without ``corrupted``. Draws take the run's seed.
        per_round: components that greedy removes at once, as long as that is faithful enough.
        smallest: a series has no verdict if ablating every node changes its forecast by up to this share of its range.
        progress: called with (removed, of).

    Returns:
        Dataset of kind "circuit": ``in_circuit`` (component); ``taken`` (component), the place in the order of removal,
        -1 for those that stay; ``curve`` (size), faithfulness by size, NaN for sizes not reached; ``faithfulness`` and
        ``completeness`` (series), 1 - faithfulness of the complement, with what :func:`tsfm_lens.probes.findings.judge`
        adds; ``forecast`` (part, series, step) of "model", "circuit", "complement" and "nothing"; by series ``gap``,
        the behaviour's difference between model and nothing, ``gap_floor``, that of noise, ``gap_share``, the
        forecast's over the series' range, and ``refused``: a gap below its floor or ``smallest``.

    Source:
        Wang et al. 2022; Conmy et al. 2023 (pruning); Syed et al. 2023 (edges); Marks et al. 2024 (completeness).

    Raises:
        InputError: no such ranking, "edges" without a corrupted series or gradients, a tolerance outside [0, 1), or a
            behaviour that does not change, in any series, when every node is ablated.
        UnknownNameError: no such component.

    Example:
        >>> data = probes.minimal_circuit(run, nodes=["decoder.*.mlp"], ranking="effects")
        >>> bool((data["faithfulness"] >= 0.9).all())
        True
    """
    _refuse(ranking, tolerance, per_round, behaviour, smallest)
    if corrupted is not None and (how != "zero" or reference is not None):
        raise InputError("give either corrupted=… or how=… with its reference, not both: each says what nodes get")
    if ranking == "edges" and corrupted is None:
        raise InputError("ranking='edges' compares a clean with a corrupted series; give corrupted=…")
    places = _nodes(clean, nodes)
    components = [place.component for place in places]
    sources = [clean]
    if corrupted is not None:
        pair = contrast(clean, corrupted, places, direction="noise")
        sources.append(pair.source)
        ablations: Ablations = {node: (PatchFrom(node, pair.source_acts),) for node in components}
    else:
        ablations = ablations_of(clean, components, how, reference)
    bench = _Bench(clean, ablations, behaviour, sources, smallest)
    if ranking == "greedy":
        order, curve = _greedy(bench, tolerance, per_round, progress)
    else:
        order, curve = _shortest_faithful(bench, _scores(bench, corrupted, ranking), tolerance)
    data = _dataset(bench, components, order, curve)
    label = getattr(behaviour, "__name__", type(behaviour).__name__) if behaviour is not None else "forecast"
    facts: dict[str, object] = {"ranking": ranking, "tolerance": tolerance, "smallest": smallest, "behaviour": label}
    facts |= {"how": "corrupted" if corrupted is not None else how, "rollout": int(clean.rollout)}
    data.attrs = clean.describe("circuit", "Minimal circuit", _OF_CIRCUITS, **facts, statistic=clean.statistic)
    if bench.no_verdict.any():
        without = ", ".join(name for name, none in zip(clean.batch.ids, bench.no_verdict, strict=True) if none)
        data.attrs["refused"] = f"no verdict on {without}: all nodes together change too little there"
    for name in ("faithfulness", "completeness"):
        data = judge(data, name, floor=bench.noise / bench.usable_gap, signed=True)
    return data


def _refuse(ranking: str, tolerance: object, per_round: object, behaviour: object, smallest: object) -> None:
    refuse_word("ranking", ranking, ("greedy", "effects", "edges"))
    if not isinstance(tolerance, int | float) or not 0 <= tolerance < 1 or not is_count(per_round):
        raise InputError(
            f"tolerance {tolerance!r}, per_round {per_round!r}: expected a tolerance from 0 to below 1, and a whole "
            "number of components of 1 or more"
        )
    refuse_no_share(smallest, "smallest")
    if behaviour is not None and not callable(behaviour):
        raise InputError(f"behaviour is {behaviour!r}, expected a function of forecasts (…, series, step)")


def _nodes(run: Run, nodes: Sequence[str | Component] | None) -> list[Place]:
    """Return the heads and branches to choose from, none of which is part of another."""
    places = nodes_of(run.lens, nodes, "nodes")
    components = [place.component for place in places]
    for place in places:
        if place.head is not None and place.branch in components:
            raise InputError(f"{place.target} is part of {place.branch}; name either the branch or its heads")
    return places


class _Bench:
    """Run with sets of nodes ablated, their faithfulness, and by series the gap, its noise, and no verdict."""

    def __init__(
        self, run: Run, ablations: Ablations, behaviour: Behaviour | None, sources: Sequence[Run], smallest: float
    ) -> None:
        self.run, self.ablations = run, ablations
        self.behaviour: Behaviour = behaviour or (lambda forecasts: forecasts)
        self.whole = self.nothing = np.empty(0)
        # side by side, so that both have the same rounding
        self.whole, nothing = self.forecasts([set(), set(ablations)])
        self.nothing = told_apart(run, nothing, self.whole)
        self.noise = np.max([noise_floor(each, self._distance) for each in sources], axis=0)
        self.gap, wide = self._distance(self.nothing, self.whole), ranges(run, self.whole)
        self.gap_share = _rms(self.nothing, self.whole) / np.where(wide > 0, wide, 1.0)
        self.no_verdict = (self.gap <= self.noise) | (self.gap_share <= smallest)
        if self.no_verdict.all():
            raise InputError(
                "ablating every node does not change the behaviour of any series by more than its noise, and its "
                f"forecast by more than {smallest:.3g} of the series' range, so no circuit can be told apart; take "
                "more nodes, another behaviour or a stronger corruption, of a sampling model more sample paths, or a "
                "lower smallest=…"
            )
        self.usable_gap = np.where(self.no_verdict, np.nan, self.gap)

    def forecasts(self, sets: Sequence[set[Component]]) -> np.ndarray:
        """Forecast with each set of nodes ablated, (set, series, step)."""
        together = [[i for node in self.ablations if node in members for i in self.ablations[node]] for members in sets]
        forecasts = point_forecasts(self.run, [Variant("ablated", tuple(interventions)) for interventions in together])
        # faithfulness and rankings by it must not depend on rounding
        for plain in (self.nothing, self.whole):
            forecasts = told_apart(self.run, forecasts, plain) if plain.size else forecasts
        return forecasts

    def faithfulness(self, forecasts: np.ndarray) -> np.ndarray:
        """Compute the faithfulness of forecasts (…, series, step), (…, series); NaN without a verdict."""
        return 1.0 - self._distance(forecasts, self.whole) / self.usable_gap

    def mean_faithfulness(self, forecasts: np.ndarray) -> np.ndarray:
        """Average the faithfulness of forecasts (…, series, step) over series that have a verdict, (…)."""
        return self.faithfulness(forecasts)[..., ~self.no_verdict].mean(-1)

    def _distance(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return _rms(self._features(one), self._features(other))

    def _features(self, forecasts: np.ndarray) -> np.ndarray:
        try:
            features = np.asarray(self.behaviour(forecasts), dtype=float)
        except (TypeError, ValueError) as error:
            raise InputError(f"the behaviour fails on forecasts of shape {forecasts.shape}: {error}") from error
        if features.shape[: forecasts.ndim - 1] != forecasts.shape[:-1] or features.ndim > forecasts.ndim:
            raise InputError(
                f"the behaviour gives shape {features.shape} for forecasts of shape {forecasts.shape}; expected "
                "(…, series) or (…, series, feature)"
            )
        if not np.isfinite(features).all():
            raise InputError("the behaviour gives values that are no numbers for some forecasts of ablated models")
        return features[..., None] if features.ndim == forecasts.ndim - 1 else features


def _rms(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute the root mean square difference over the last axis."""
    return np.asarray(np.sqrt(np.square(one - other).mean(-1)))


def _greedy(
    bench: _Bench, tolerance: float, per_round: int, progress: Progress | None
) -> tuple[list[Component], dict[int, float]]:
    """Return nodes in the order of removal, and the faithfulness of each size reached."""
    order: list[Component] = []
    rest = list(bench.ablations)
    curve = {len(rest): 1.0}
    while rest:
        scores = bench.mean_faithfulness(bench.forecasts([{*order, node} for node in rest]))
        best = [rest[i] for i in np.argsort(-scores, kind="stable")]
        removal, value = best[:1], float(scores.max())
        if per_round > 1 and value >= 1 - tolerance:
            together = float(bench.mean_faithfulness(bench.forecasts([{*order, *best[:per_round]}]))[0])
            if together >= 1 - tolerance:
                removal, value = best[:per_round], together
        if value < 1 - tolerance:
            break
        order += removal
        rest = [node for node in rest if node not in removal]
        curve[len(rest)] = value
        if progress is not None:
            progress(len(order), len(bench.ablations))
    return order, curve


def _shortest_faithful(
    bench: _Bench, scores: dict[Component, float], tolerance: float
) -> tuple[list[Component], dict[int, float]]:
    """Remove nodes of the lowest scores, as many as leave the rest faithful enough."""
    order = sorted(bench.ablations, key=lambda node: scores[node])
    values = bench.mean_faithfulness(bench.forecasts([set(order[:count]) for count in range(len(order) + 1)]))
    curve = {len(order) - count: float(value) for count, value in enumerate(values)}
    counts = [count for count, value in enumerate(values) if value >= 1 - tolerance]
    return order[: max(counts, default=0)], curve


def _scores(bench: _Bench, corrupted: Run | None, ranking: str) -> dict[Component, float]:
    nodes = list(bench.ablations)
    if ranking == "effects" or corrupted is None:
        alone = bench.forecasts([{node} for node in nodes])
        return dict(zip(nodes, 1.0 - bench.mean_faithfulness(alone), strict=True))
    edges = edge_attribution(bench.run, corrupted, nodes=nodes)
    change = abs(edges["clean_forecast"] - edges["corrupted_forecast"]).max("step").values
    scores = np.abs(edges["score"].values)
    above_rounding = np.where(scores * change > rounding(bench.run, bench.whole), scores, 0.0)
    return dict(zip(nodes, above_rounding.sum(1)[:, ~bench.no_verdict].mean(-1), strict=True))


def _dataset(bench: _Bench, nodes: list[Component], order: list[Component], curve: dict[int, float]) -> xr.Dataset:
    outside, inside = set(order), set(nodes) - set(order)
    circuit, complement = bench.forecasts([outside, inside])
    data = bench.run.dataset()
    data = data.assign_coords(component_coords(nodes)).assign_coords(
        size=range(len(nodes) + 1), part=["model", "circuit", "complement", "nothing"]
    )
    data["in_circuit"] = ("component", [node in inside for node in nodes])
    data["taken"] = ("component", [order.index(node) if node in outside else -1 for node in nodes])
    data["curve"] = ("size", [curve.get(size, np.nan) for size in range(len(nodes) + 1)])
    data["faithfulness"] = ("series", bench.faithfulness(circuit))
    data["completeness"] = ("series", 1.0 - bench.faithfulness(complement))
    data["gap"], data["gap_floor"] = ("series", bench.gap), ("series", bench.noise)
    data["gap_share"], data["refused"] = ("series", bench.gap_share), ("series", bench.no_verdict)
    data["forecast"] = (("part", "series", "step"), np.stack([bench.whole, circuit, complement, bench.nothing]))
    return data
