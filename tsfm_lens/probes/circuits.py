"""Minimal circuits: components that keep a behaviour while all others are ablated.

Components are removed one by one and in pairs, until no other can go. Read
:func:`minimal_circuit` first; ``Bench`` says how faithful a set of components is, and
``_Search`` removes them. The search is greedy, so it finds one circuit of possibly
several, and three components that can only go together may remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import chain, combinations
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import SMALLEST_SHARE, add_estimates, check_share
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Intervention, PatchFrom
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.noise import (
    cached_flat_contexts,
    keep_above_rounding,
    noise_floor,
    ranges,
    rounding,
)
from tsfm_lens.models.run import Run
from tsfm_lens.probes.given import check_option
from tsfm_lens.probes.patching import contrast
from tsfm_lens.probes.path_patching import edge_attribution
from tsfm_lens.probes.sites import PatchSite, component_coords, list_nodes
from tsfm_lens.probes.zero_ablation import make_ablations

__all__ = ["minimal_circuit"]


Ablations = dict[Component, tuple[Intervention, ...]]
Behaviour = Callable[[np.ndarray], np.ndarray]
"""Features of forecasts that a circuit keeps.

The function maps (…, series, step) to (…, series, feature), or to (…, series).
"""


@probe(
    "pair",
    title="Minimal circuit",
    theme="Causes",
    summary="minimal circuits with faithfulness and completeness",
    description=(
        "The fewest heads and MLPs that keep the forecast within a tolerance while "
        "everything else is ablated."
    ),
    source=(
        "Wang et al. 2022, arXiv:2211.00593; Conmy et al. 2023; Syed et al. 2023; Marks"
        " et al. 2024"
    ),
    cost="search",
    example={"nodes": ["*.*.mlp"]},
)
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
    order: int = 2,
    smallest: float = SMALLEST_SHARE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Remove components as long as the behaviour stays within a tolerance.

    The faithfulness of a set of components is 1 - d(set, model) / d(nothing, model).
    Everything outside the set is ablated, and d is the root mean square difference of
    the behaviour.

    With ``order=2`` the circuit is minimal up to pairs: no component and no two
    components can go as well. Two heads that cancel each other can only go together.
    Three components that can only go together may remain. With ``order=1`` two may
    remain, and the result does not call the circuit minimal.

    The null of a circuit is a random set of as many components, as it claims a choice
    and no size of a change: see :func:`circuit_curve`.

    Args:
        clean: the run that shows the behaviour.
        corrupted: a run without it and with the same options; if given, its activations
            replace nodes outside the set.
        ranking: "greedy" removes in each round the component that lowers faithfulness
            least. "effects" and "edges" do so after they have taken the shortest
            faithful list, ranked by single ablation, or by the size of outgoing edges.
        tolerance: allowed loss of faithfulness, averaged over the series that have a
            verdict.
        behaviour: the features of a forecast to keep; the forecast itself if None.
        nodes: heads and branches to choose from; all heads and MLPs of the output stack
            if None.
        how: "zero", "mean", "resample" or "noise", which replaces nodes outside the
            set; only without ``corrupted``. Draws take the run's seed.
        reference: activations, or series to record them on, from which "mean" and
            "resample" take their values.
        per_round: components that are removed at once, if the rest is faithful enough.
        order: 2 tries all pairs once no single component can go, with n (n - 1) / 2
            forecasts of a circuit of n components; 1 tries none.
        smallest: a series has no verdict if ablating every node changes its forecast by
            up to this share of its range.
        progress: called with (removed, of).

    Returns:
        Dataset of kind "minimal_circuit":

        - ``in_circuit`` (component): whether it stays.
        - ``taken`` (component): its place in the order of removal, -1 for those that
          stay.
        - ``cost`` (component): mean faithfulness that its removal lost, of several at
          once in equal parts; NaN for those that stay.
        - ``curve`` (size): faithfulness by size, NaN for sizes not reached.
        - ``faithfulness`` (series): of the circuit, with what
          :func:`.estimates.add_estimates` adds.
        - ``completeness`` (series): 1 - faithfulness of the complement, with the same.
        - ``forecast`` (part, series, step): of "model", "circuit", "complement" and
          "nothing", in data units.
        - ``gap`` (series): the behaviour's difference between model and nothing.
        - ``gap_floor`` (series): that of noise.
        - ``gap_share`` (series): the forecast's difference over the series' range.
        - ``refused`` (series): whether the gap is below its floor or ``smallest``.

        Attribute ``minimal`` is "up to pairs" with ``order=2``, and else missing.

    Source:
        Wang et al. 2022; Conmy et al. 2023 (pruning); Syed et al. 2023 (edges); Marks
        et al. 2024 (completeness).

    Raises:
        InputError: no such ranking, "edges" without a corrupted series or gradients, a
            tolerance outside [0, 1), an order other than 1 or 2, or a behaviour that
            ablating every node changes in no series.
        UnknownNameError: no such component.

    Example:
        >>> data = probes.minimal_circuit(
        ...     run, nodes=["decoder.*.mlp"], ranking="effects"
        ... )
        >>> bool((data["faithfulness"] >= 0.9).all())
        True
    """
    _check_options(ranking, tolerance, per_round, order)
    if ranking == "edges" and corrupted is None:
        raise InputError(
            "ranking='edges' compares a clean with a corrupted series; give corrupted=…"
        )
    bench = make_bench(
        clean,
        corrupted,
        nodes=nodes,
        how=how,
        reference=reference,
        behaviour=behaviour,
        smallest=smallest,
    )
    search = _Search(bench, tolerance, progress)
    if ranking != "greedy":
        search.take_shortest(_scores(bench, corrupted, ranking))
    search.prune(per_round, order)
    data = _dataset(bench, search)
    data.attrs = {
        "ranking": ranking,
        "tolerance": tolerance,
        "order": order,
        **bench.parameters,
    }
    if order > 1:
        data.attrs["minimal"] = "up to pairs"
    # both are 1 less a distance over the gap, so noise counts in units of the gap
    for name in ("faithfulness", "completeness"):
        data = add_estimates(data, name, floor=bench.floor, signed=True)
    return data


def _check_options(
    ranking: str, tolerance: object, per_round: object, order: object
) -> None:
    """Check the options of the search of :func:`minimal_circuit`."""
    check_option("ranking", ranking, ("greedy", "effects", "edges"))
    if (
        not isinstance(tolerance, int | float | np.number)
        or not 0 <= tolerance < 1
        or not is_count(per_round)
    ):
        raise InputError(
            f"tolerance {tolerance!r}, per_round {per_round!r}: expected a tolerance"
            " from 0 to below 1, and a whole number of components of 1 or more"
        )
    if not is_count(order) or order not in (1, 2):
        raise InputError(
            f"order={order!r} is not known, choose 1 (single components) or 2 (pairs,"
            " too)"
        )


def make_bench(
    clean: Run,
    corrupted: Run | None,
    *,
    nodes: Sequence[str | Component] | None,
    how: str = "zero",
    reference: Any = None,
    behaviour: Behaviour | None = None,
    smallest: float = SMALLEST_SHARE,
) -> Bench:
    """Return the bench of a run; arguments as :func:`minimal_circuit` takes them.

    Raises:
        InputError: an argument is wrong, or ablating every node changes too little.
        UnknownNameError: no such component.
    """
    check_share(smallest, "smallest")
    if behaviour is not None and not callable(behaviour):
        raise InputError(
            f"behaviour is {behaviour!r}, expected a function of forecasts (…, series,"
            " step)"
        )
    if corrupted is not None and (how != "zero" or reference is not None):
        raise InputError(
            "give either corrupted=… or how=… with its reference, not both: each"
            " ablates nodes outside"
        )
    sites = _nodes(clean, nodes)
    components = [site.component for site in sites]
    sources = [clean]
    if corrupted is None:
        ablations = make_ablations(clean, components, how, reference)
    else:
        how = "corrupted"
        # the clean run is the base: what lies outside the circuit comes from the
        # corrupted one
        pair = contrast(clean, corrupted, sites, direction="noise")
        sources.append(pair.source)
        ablations = {node: (PatchFrom(node, pair.source_acts),) for node in components}
    return Bench(clean, ablations, behaviour, sources, smallest, how)


def _nodes(run: Run, nodes: Sequence[str | Component] | None) -> list[PatchSite]:
    """Return the heads and branches to choose from; none is part of another."""
    sites = list_nodes(run.lens, nodes, "nodes")
    components = [site.component for site in sites]
    for site in sites:
        if site.head is not None and site.branch in components:
            raise InputError(
                f"{site.target} is part of {site.branch}; name either the"
                " branch or its heads"
            )
    return sites


class Bench:
    """Run whose nodes can be ablated, and the faithfulness of what then remains.

    By series it holds the gap of the behaviour between the full model and one with
    every node ablated, the noise of that gap, and whether it is too small for a
    verdict.
    """

    def __init__(
        self,
        run: Run,
        ablations: Ablations,
        behaviour: Behaviour | None,
        sources: Sequence[Run],
        smallest: float,
        how: str,
    ) -> None:
        self.run = run
        self.ablations = ablations
        self.smallest = smallest
        self.how = how
        self.own_behaviour = behaviour
        self.behaviour: Behaviour = behaviour or (lambda forecasts: forecasts)
        # empty until both are known, as forecasts() compares with them
        self.full = self.nothing = np.empty(0)
        # in one call, so that both have the same rounding
        self.full, nothing = self.forecasts([set(), set(ablations)])
        self.nothing = keep_above_rounding(run, nothing, self.full)
        # a corrupted run brings its own noise into what is patched
        self.noise = np.max(
            [noise_floor(source, self._distance) for source in sources], axis=0
        )
        self.gap = self._distance(self.nothing, self.full)
        spans = ranges(run, self.full)
        self.gap_share = _rms(self.nothing, self.full) / np.where(spans > 0, spans, 1.0)
        # a flat forecast of a context that varies has a circuit: faithfulness is a
        # share of the gap, not of the shape
        self.flat = cached_flat_contexts(run)
        self.no_verdict = (
            (self.gap <= self.noise) | (self.gap_share <= smallest) | self.flat
        )
        if self.no_verdict.all():
            raise InputError(
                "ablating every node does not change the behaviour of any series by"
                f" more than its noise, and its forecast by more than {smallest:.3g} of"
                " the series' range, so no circuit can be told apart; take more nodes,"
                " another behaviour or a stronger corruption, of a sampling model more"
                " sample paths, or a lower smallest=…"
            )
        # NaN leaves series without a verdict out of every statistic
        self.usable_gap = np.where(self.no_verdict, np.nan, self.gap)

    @property
    def floor(self) -> np.ndarray:
        """Noise of the faithfulness, (series,); NaN for series without a verdict."""
        floor: np.ndarray = self.noise / self.usable_gap
        return floor

    @property
    def parameters(self) -> dict[str, Any]:
        """Attributes of a result: how it ablates, and the series without a verdict."""
        behaviour = "forecast"
        if self.own_behaviour is not None:
            behaviour = getattr(
                self.own_behaviour, "__name__", type(self.own_behaviour).__name__
            )
        attributes = {
            "smallest": self.smallest,
            "behaviour": behaviour,
            "how": self.how,
            "rollout": int(self.run.rollout),
            "statistic": self.run.statistic,
        }
        if self.no_verdict.any():
            without = ", ".join(np.array(self.run.batch.ids)[self.no_verdict])
            attributes["refused"] = (
                f"no verdict on {without}: all nodes together change too little there"
            )
        return attributes

    def forecasts(
        self, sets: Sequence[Set[Component]], progress: Progress | None = None
    ) -> np.ndarray:
        """Forecast with each set of nodes ablated, (set, series, step)."""
        ablations = [
            # in the order of the model, as a set has none
            [parts for node, parts in self.ablations.items() if node in members]
            for members in sets
        ]
        variants = [Variant("ablated", tuple(chain(*parts))) for parts in ablations]
        forecasts = point_forecasts(self.run, variants, progress)
        # faithfulness and rankings by it must not depend on rounding
        for plain in (self.nothing, self.full):
            if plain.size:
                forecasts = keep_above_rounding(self.run, forecasts, plain)
        return forecasts

    def faithfulness(self, forecasts: np.ndarray) -> np.ndarray:
        """Return the faithfulness (…, series) of forecasts (…, series, step).

        It is NaN for series without a verdict.
        """
        return 1.0 - self._distance(forecasts, self.full) / self.usable_gap

    def recovered(self, forecasts: np.ndarray) -> np.ndarray:
        """Return the share of the way from nothing to the model, (…, series).

        It is that of the behaviour of forecasts (…, series, step), along this way, so
        it may lie outside 0 and 1. It is NaN for series without a verdict.
        """
        start = self._features(self.nothing)
        way = self._features(self.full) - start
        along = ((self._features(forecasts) - start) * way).sum(-1)
        length = np.where(self.no_verdict, np.nan, np.square(way).sum(-1))
        return np.asarray(along / length)

    def mean_faithfulness(self, forecasts: np.ndarray) -> np.ndarray:
        """Return the mean faithfulness (…) of forecasts (…, series, step).

        The mean is over the series that have a verdict.
        """
        result: np.ndarray = self.faithfulness(forecasts)[..., ~self.no_verdict].mean(
            -1
        )
        return result

    def _distance(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return _rms(self._features(one), self._features(other))

    def _features(self, forecasts: np.ndarray) -> np.ndarray:
        """Apply the behaviour to forecasts, and check what it returns."""
        try:
            features = np.asarray(self.behaviour(forecasts), dtype=float)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the behaviour fails on forecasts of shape {forecasts.shape}: {error}"
            ) from error
        if (
            features.shape[: forecasts.ndim - 1] != forecasts.shape[:-1]
            or features.ndim > forecasts.ndim
        ):
            raise InputError(
                f"the behaviour gives shape {features.shape} for forecasts of shape"
                f" {forecasts.shape}; expected (…, series) or (…, series, feature)"
            )
        if not np.isfinite(features).all():
            raise InputError(
                "the behaviour gives values that are no numbers for some forecasts of"
                " ablated models"
            )
        # a last axis of one feature, as distances average over it
        if features.ndim == forecasts.ndim - 1:
            return features[..., None]
        return features


def _rms(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute the root mean square difference over the last axis."""
    return np.asarray(np.sqrt(np.square(one - other).mean(-1)))


class _Search:
    """Search for a circuit: the nodes that remain, and the cost of those removed.

    Removed nodes are in order of removal; the curve is the faithfulness by size.
    """

    def __init__(
        self, bench: Bench, tolerance: float, progress: Progress | None
    ) -> None:
        self.bench = bench
        self.required = 1 - tolerance
        self.progress = progress
        self.remaining = list(bench.ablations)
        self.cost: dict[Component, float] = {}
        self.curve = {len(self.remaining): 1.0}

    def take_shortest(self, scores: dict[Component, float]) -> None:
        """Remove as many nodes of the lowest scores as leave the rest faithful."""
        order = sorted(self.remaining, key=lambda node: scores[node])
        # all lengths in one call, since variants that run side by side share their
        # forwards
        values = self.values([order[:count] for count in range(1, len(order) + 1)])
        # the longest removal that is faithful: values need not fall steadily
        faithful = np.flatnonzero(values >= self.required)
        count = 0
        if len(faithful):
            count = int(faithful[-1]) + 1
        for node, value in zip(order[:count], values[:count], strict=True):
            self.remove([node], float(value))
        # sizes beyond the removal have been measured, too
        self.curve |= {
            len(order) - 1 - index: float(value) for index, value in enumerate(values)
        }

    def prune(self, per_round: int, order: int) -> None:
        """Remove the node that costs least, as long as one can go.

        If no single node can go and the order is 2, remove the pair that costs least,
        and go on.
        """
        while self.remaining:
            singles = [[node] for node in self.remaining]
            values = self.values(singles)
            # stable, so that equal nodes go in the order of the model
            ranked = np.argsort(-values, kind="stable")
            best = singles[ranked[0]]
            value = float(values[ranked[0]])
            if value >= self.required and per_round > 1:
                several = [self.remaining[index] for index in ranked[:per_round]]
                value_of_several = float(self.values([several])[0])
                if value_of_several >= self.required:
                    best = several
                    value = value_of_several
            # pairs are many, so they are tried only where no single node can go
            if value < self.required and order > 1 and len(self.remaining) > 1:
                best, value = self.best_pair()
            if value < self.required:
                return
            self.remove(best, value)

    def best_pair(self) -> tuple[list[Component], float]:
        """Return the pair without which the rest is most faithful, and how faithful."""
        candidates = [list(pair) for pair in combinations(self.remaining, 2)]
        values = self.values(candidates)
        index = int(np.argmax(values))
        return candidates[index], float(values[index])

    def values(self, candidates: Sequence[Sequence[Component]]) -> np.ndarray:
        """Return the mean faithfulness of what remains without each group, (group,).

        The nodes removed so far are left out too.
        """
        return self.bench.mean_faithfulness(
            self.bench.forecasts([{*self.cost, *group} for group in candidates])
        )

    def remove(self, group: Sequence[Component], value: float) -> None:
        """Remove nodes; the value is how faithful the rest is."""
        lost = self.curve[len(self.remaining)] - value
        self.cost |= dict.fromkeys(group, lost / len(group))
        self.remaining = [node for node in self.remaining if node not in self.cost]
        self.curve[len(self.remaining)] = value
        if self.progress is not None:
            self.progress(len(self.cost), len(self.bench.ablations))


def single_effects(bench: Bench) -> dict[Component, float]:
    """Score each node by the faithfulness that is lost without it alone."""
    nodes = list(bench.ablations)
    single = bench.forecasts([{node} for node in nodes])
    return dict(zip(nodes, 1.0 - bench.mean_faithfulness(single), strict=True))


def _scores(
    bench: Bench, corrupted: Run | None, ranking: str
) -> dict[Component, float]:
    """Score each node by single ablation, or by the size of its outgoing edges."""
    if ranking == "effects" or corrupted is None:
        return single_effects(bench)
    nodes = list(bench.ablations)
    edges = edge_attribution(bench.run, corrupted, nodes=nodes)
    # scores are shares of this change, and become data units by it, as rounding is
    change = (
        abs(edges["clean_forecast"] - edges["corrupted_forecast"]).max("step").values
    )
    scores = np.abs(edges["score"].values)
    # the order must not depend on rounding
    above_rounding = np.where(
        scores * change > rounding(bench.run, bench.full), scores, 0.0
    )
    outgoing = above_rounding.sum(1)[:, ~bench.no_verdict].mean(-1)
    return dict(zip(nodes, outgoing, strict=True))


def _dataset(bench: Bench, search: _Search) -> xr.Dataset:
    """Return the circuit that a search found, with its forecasts."""
    nodes = list(bench.ablations)
    order = list(search.cost)
    remaining = set(search.remaining)
    circuit, complement = bench.forecasts([set(order), remaining])
    data = bench.run.dataset()
    data = data.assign_coords(component_coords(nodes)).assign_coords(
        flat=("series", bench.flat),
        size=range(len(nodes) + 1),
        part=["model", "circuit", "complement", "nothing"],
    )
    taken = [-1 if node in remaining else order.index(node) for node in nodes]
    curve = [search.curve.get(int(size), np.nan) for size in data["size"]]
    forecasts = np.stack([bench.full, circuit, complement, bench.nothing])
    return data.assign(
        in_circuit=("component", [node in remaining for node in nodes]),
        taken=("component", taken),
        cost=("component", [search.cost.get(node, np.nan) for node in nodes]),
        curve=("size", curve),
        faithfulness=("series", bench.faithfulness(circuit)),
        completeness=("series", 1.0 - bench.faithfulness(complement)),
        gap=("series", bench.gap),
        gap_floor=("series", bench.noise),
        gap_share=("series", bench.gap_share),
        refused=("series", bench.no_verdict),
        forecast=(("part", "series", "step"), forecasts),
    )
