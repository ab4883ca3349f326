"""Faithfulness: tests of explanations against random ones and controls.

:func:`deletion_curves` masks the input in the order of an explanation, and compares its
effects with those of masking one or two segments; :func:`route_faithfulness` cuts and
restores the components that routes name. What their numbers mean is decided by
:func:`tsfm_lens.core.verdict.verdict`, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import CONFIDENCE, CONFIDENCE_TEXT, SMALLEST
from tsfm_lens.core.verdict import EXCHANGED, RULES, SEGMENT_CONTROLS, verdict
from tsfm_lens.data.batch import Item
from tsfm_lens.explain.attribution import input_attribution
from tsfm_lens.explain.masking import Reference, in_random_order, reference_label
from tsfm_lens.explain.parts import Parts
from tsfm_lens.explain.routes import PairedRuns, list_branches
from tsfm_lens.explain.segments import read_segments, segment_coords
from tsfm_lens.explain.values import Masks, single_pass
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import noise_floor, with_noise
from tsfm_lens.models.run import Run
from tsfm_lens.models.twins import untrained_twin
from tsfm_lens.probes.sites import parse_sites

__all__ = ["RULES", "deletion_curves", "route_faithfulness", "verdict"]

_MAX_COMPONENTS = 6  # named for a segment
# random sets of components for a segment; with the named one among them the smallest
# p is 1 / 33, which is below the level of 5 %
_CONTROLS = 32
_MAX_SEGMENTS = 4  # whose routes are tested
WORTH_NAMING = 0.25
"""Share of a segment's largest route below which others are not named."""
MATTERS = 0.1
"""Least total effect of a segment with named routes, as a share of the largest one.

Where a model divides a series by its own mean, each value changes all activations a
little, though the multiplication by the mean at the end undoes that.
"""


def named_routes(
    routes: xr.Dataset, *, most: int = _MAX_COMPONENTS
) -> dict[str, list[str]]:
    """Return the components that matter most by segment, largest first.

    Their effects are above noise and at least a quarter of the segment's largest.
    Components that work against the segment's effect are not named.
    """
    names = [str(name) for name in routes["component"].values]
    totals = np.abs(routes["total"].values).mean(-1)
    above_floor = totals > max(
        float(routes["total_floor"]), MATTERS * totals.max(initial=0.0)
    )
    selection = {}
    for position, segment in enumerate(routes["segment"].values):
        # after a search by gradient, components that were not tried have NaN and cannot
        # be named
        sizes = np.nan_to_num(routes["size"].values[position], nan=0.0)
        # size_acts is 1 where the effect is above noise
        worth_naming = routes["size_acts"].values[position] > 0
        worth_naming &= sizes >= WORTH_NAMING * sizes.max(initial=0.0)
        worth_naming &= routes["share"].values[position] > 0
        worth_naming &= above_floor[position]
        order = np.argsort(-sizes, kind="stable")
        named = [names[index] for index in order if worth_naming[index]]
        selection[str(segment)] = named[:most]
    return selection


@probe(
    lambda results: (single_pass(results.first), results["input_routes"]),
    title="Faithfulness by cutting routes",
    theme="Inputs",
    summary=(
        "necessity and sufficiency of named routes against matched random components"
    ),
    description=(
        "The routes named for a segment are cut together, and restored together in "
        "the forecast without the segment. They explain its effect if cutting "
        "removes it and restoring brings it back, more than with random components."
    ),
    source=(
        "Geiger et al. 2021, arXiv:2106.02997 (interchange); Wang et al. 2022"
        " (faithfulness of circuits)"
    ),
    needs="series",
    computes="route_faithfulness of input_routes of the first item",
    one_item=True,
    options={"reference": "mean"},
)
@with_messages_once
def route_faithfulness(
    run: Run,
    routes: xr.Dataset,
    item: Item = None,
    *,
    target: int | str = 0,
    named: Mapping[str, Sequence[str]] | None = None,
    reference: Reference = "mean",
    controls: int = _CONTROLS,
    most: int = _MAX_SEGMENTS,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Cut the named routes of each segment, restore them, and compare with chance.

    Chance is random components of the same kinds. A cut component writes its activation
    of the run without the segment; a restored one writes that of the full run. Routes
    are necessary if cutting them removes the effect, and sufficient if restoring them
    brings it back.

    Args:
        run: the forecast that is explained.
        routes: the routes to test, of kind "input_routes", of the same run, item and
            target.
        item: the item of the routes, by position or name; the only one if None.
        target: the target of the routes, by position or name.
        named: components by segment. If None, those whose effect is above noise, of the
            segment's sign, and at least a quarter of its largest.
        reference: values of masked steps, as the routes were measured: one of
            :data:`REFERENCES`, a dict with one for each role ("target", "past",
            "known"), or (time + horizon,) for each series.
        controls: number of random sets, with as many components of each stack and kind
            as are named.
        most: number of segments to test, by largest total effect.
        seed: of the controls, and of a shuffled reference.
        progress: called with (segments done, of).

    Returns:
        Dataset of kind "route_faithfulness" over segments that have named routes.
        ``cut`` counts components, the last position all of them together; ``cut_name``
        (segment, cut) names them.

        - Over (segment, cut, step), in data units: ``measured`` is the change by the
          cut. ``predicted`` is the effect of a single component to first order (NaN
          without gradients), and for all together the segment's total effect.
        - ``total`` (segment, step): the total effect. ``prediction_error`` (segment),
          of all together: the root of squared error over squared change.
        - As shares of the total effect: ``necessity`` and ``sufficiency`` (segment),
          and the same of random sets, ``random_necessity`` and ``random_sufficiency``
          (segment, draw).
        - ``necessity_p`` and ``sufficiency_p`` (segment): the share of random sets, the
          named one included, that come as near to all of the effect.
        - ``overlap`` (segment): the sum of single necessities over that of all
          together.

    Source:
        Geiger et al. 2021; Wang et al. 2022.

    Raises:
        InputError: no segment has named routes; controls or most is not a count; the
            routes are of another item.
        UnknownNameError: no such component.

    Example:
        >>> found = explain.input_routes(
        ...     run, parts=2, reference="mean", components=["decoder.*.mlp"]
        ... )
        >>> tested = explain.route_faithfulness(
        ...     run, found, reference="mean", controls=4
        ... )
        >>> float(tested["necessity"].max()) <= 1.5
        True
    """
    for label, value in (("controls", controls), ("most", most)):
        if not is_count(value):
            raise InputError(f"{label} is {value!r}, expected a number of 1 or more")
    pair = PairedRuns(run, read_segments(routes), reference, item, target, seed)
    lens = pair.run.lens
    names = [part.name for part in pair.segments]
    selections = named_routes(routes) if named is None else named
    # names may be globs, which stand for all their components here
    by_segment = {
        name: [
            component
            for pattern in selection
            for component in lens.components(str(pattern))
        ]
        for name, selection in selections.items()
    }
    unknown = sorted(set(by_segment) - set(names))
    if unknown:
        raise InputError(f"{unknown[0]!r} is not a segment of these routes")
    order = np.argsort(-np.abs(routes["total"].values).mean(-1), kind="stable")
    tested = [int(index) for index in order if by_segment.get(names[index])][:most]
    if not tested:
        raise InputError(
            "no segment has a named route to test: no effect is above the noise"
        )
    # each component by itself, then all together
    n_cuts = max(len(by_segment[names[index]]) for index in tested) + 1
    steps = pair.run.horizon
    cut_names = np.full((len(tested), n_cuts), "", dtype=object)
    predicted, measured = (
        np.full((len(tested), n_cuts, steps), np.nan) for _ in range(2)
    )
    total = routes["total"].values[tested]
    summed_necessities = np.empty(len(tested))  # of single components
    # shares of the effect, lost without components and restored by them; the named set
    # comes first on the last axis, its random controls follow
    shares = np.empty((2, len(tested), 1 + controls))
    candidates = [str(name) for name in routes["component"].values]
    for row, index in enumerate(tested):
        components = by_segment[names[index]]
        # controls of a segment do not depend on which other segments are tested
        rng = np.random.default_rng([seed, index])
        sets = [components, *matched_sets(lens, components, controls, rng)]
        lost, restored = _cut_and_restore(pair, pair.without([index]), components, sets)
        # all together stand in the last column, also of segments with fewer components;
        # ``lost`` has them right after the single ones, as the first of the sets
        columns = [*range(len(components)), n_cuts - 1]
        cut_names[row, columns] = [*map(str, components), "all together"]
        measured[row, columns] = lost[: len(columns)]
        predicted[row, -1] = total[row]
        # users may name components that the search did not list, and models without
        # gradients have no estimate
        for column, name in enumerate(map(str, components)):
            if "estimate" in routes and name in candidates:
                predicted[row, column] = routes["estimate"].values[
                    index, candidates.index(name)
                ]
        squares = np.square(total[row]).sum()
        # of a segment without effect there are no shares
        square = squares if squares > 0 else np.nan
        # (2, set, step): lost by cutting each set, and restored by it
        changes = np.stack([lost[len(components) :], restored])
        # a share is the factor of the total effect that fits a change by least squares
        shares[:, row] = changes @ total[row] / square
        single_changes = lost[: len(components)]
        summed_necessities[row] = (single_changes @ total[row]).sum() / square
        if progress is not None:
            progress(row + 1, len(tested))
    axis = ("segment",)
    # agreement() gives R² first, which is 1 less the squared error of the prediction
    # over the squared change, so that this is the root of their quotient
    errors = [
        (1 - agreement(*curves)[0]) ** 0.5
        for curves in zip(measured[:, -1], predicted[:, -1], strict=True)
    ]
    data = pair.dataset().isel(segment=tested).assign_coords(cut=np.arange(n_cuts))
    data = data.assign(
        cut_name=(("segment", "cut"), cut_names.astype(str)),
        predicted=(("segment", "cut", "step"), predicted),
        measured=(("segment", "cut", "step"), measured),
        total=(("segment", "step"), total),
        prediction_error=(axis, np.array(errors)),
        overlap=(axis, summed_necessities / shares[0, :, 0]),
    )
    for name, values in zip(("necessity", "sufficiency"), shares, strict=True):
        data[name] = (axis, values[:, 0])
        data[f"random_{name}"] = (("segment", "draw"), values[:, 1:])
        # all of the effect is 1; a set that takes twice of it, and so overturns it, is
        # as far off as one that takes nothing
        as_good = (np.abs(1 - values[:, 1:]) <= np.abs(1 - values[:, :1])).sum(-1)
        data[f"{name}_p"] = (axis, (1 + as_good) / values.shape[1])
    return data.assign_attrs(
        units=pair.units,
        reference=reference_label(reference),
        target=pair.name,
        controls=controls,
        rollout=int(pair.run.rollout),
    )


def _cut_and_restore(
    pair: PairedRuns,
    without: Run,
    components: Sequence[Component],
    sets: Sequence[Sequence[Component]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the effects that cuts lose, (cut, step), and sets restore, (set, step).

    Cuts are of each of the components, then of each set.
    """
    points = sorted(
        {
            site.point
            for chosen in sets
            for site in parse_sites(pair.run.lens, list(chosen))
        }
    )
    masked_activations = without.record(points)
    full_activations = pair.run.record(points)
    cuts = [
        Variant(
            "cut",
            tuple(PatchFrom(component, masked_activations) for component in chosen),
        )
        for chosen in [*([component] for component in components), *sets]
    ]
    lost = pair.change(cuts)
    restorations = [
        Variant(
            "restored",
            tuple(PatchFrom(component, full_activations) for component in chosen),
        )
        for chosen in sets
    ]
    # PairedRuns.change measures from the full forecast; what is restored is counted
    # from the forecast without the segment
    restored = point_forecasts(without, restorations)[:, pair.row]
    return lost, restored - without.point[pair.row]


def matched_sets(
    lens: Lens, components: Sequence[Component], count: int, rng: np.random.Generator
) -> list[list[Component]]:
    """Return sets of random components, as many of each stack and kind as given.

    They are components other than the given ones where there are enough.
    """
    pools: dict[tuple[object, ...], list[Component]] = {}
    # whole attentions may be named too, which list_branches leaves out in favour of
    # their heads
    for writer in dict.fromkeys([*list_branches(lens), *components]):
        pools.setdefault(_kind(writer), []).append(writer)
    sets = []
    for _ in range(count):
        sample: list[Component] = []
        for kind in dict.fromkeys(map(_kind, components)):
            same_kind = [
                component for component in components if _kind(component) == kind
            ]
            alternatives = [
                candidate for candidate in pools[kind] if candidate not in same_kind
            ]
            # small models have too few others of a kind; a control then may share some
            # of the named components, but never lacks any
            if len(alternatives) >= len(same_kind):
                pool = alternatives
            else:
                pool = pools[kind]
            sample += [
                pool[index]
                for index in rng.choice(len(pool), len(same_kind), replace=False)
            ]
        sets.append(sample)
    return sets


def _kind(component: Component) -> tuple[object, ...]:
    # a head is no match for a whole attention, though both have its branch's kind
    return component.stack, component.kind, component.head is None


_ORDERS = 64  # random orders of all segments
# sets of one or two segments whose effects are predicted; 12 segments, the most that
# are explained exactly (EXACT), have 12 + 66 of them
_MAX_SETS = 78
NOISE = 0.05
"""Noise of the series in which effects are measured, in their standard deviations."""
CONTROLS = (
    "signs flipped",
    "equal sizes",
    EXCHANGED,
    "values in random order",
    "the untrained twin",
)
_TWIN_WEIGHTS = 20_000_000  # up to which making a twin takes less than a second


def _explanations(results: Any) -> tuple[Run, dict[str, Any]]:
    """Return the attribution of the inputs, and attention rollout as its rival."""
    attribution = results["input_attribution"]
    explanations = {str(attribution.attrs["method"]): attribution}
    rival = "attention rollout"
    attends = results.first.lens.wiring.output_stack.attention_kinds()
    # attention is on stretches of time, not on parts of their values
    if (
        attends
        and rival not in explanations
        and "part_values" not in attribution.coords
    ):
        options = {**_reference(results), "parts": read_segments(attribution)}
        explanations[rival] = input_attribution(results.first, method=rival, **options)
    return results.first, explanations


def _reference(results: Any) -> dict[str, Any]:
    """Return the reference of the attribution, unless another is asked for."""
    options = results.options.get("deletion_curves", {})
    return {
        "reference": options.get(
            "reference", results["input_attribution"].attrs["reference"]
        )
    }


@probe(
    _explanations,
    title="Faithfulness by masking",
    theme="Inputs",
    summary=(
        "how well input attributions predict masking, against controls; deletion "
        "and insertion curves"
    ),
    description=(
        "The effects of an explanation must predict how masking segments changes "
        "the forecast. Segments are also masked, and revealed, in its order. A true "
        "explanation moves the forecast sooner than most random orders (band: "
        f"{CONFIDENCE_TEXT})."
    ),
    source=(
        "Samek et al. 2017, arXiv:1509.06321; Petsiuk et al. 2018, arXiv:1806.07421"
        " (deletion and insertion)"
    ),
    needs="series",
    computes="deletion_curves of attributions of the first item",
    one_item=True,
    options=_reference,
)
@with_messages_once
def deletion_curves(
    run: Run,
    explanations: Mapping[str, Any] | xr.Dataset,
    item: Item = None,
    *,
    target: int | str = 0,
    parts: Parts = None,
    reference: Reference = "mean",
    orders: int = _ORDERS,
    twin: bool | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Test explanations by masking segments, against random orders and controls.

    Without the first segments of a true explanation, the forecast is far from the full
    one (deletion). With them alone it is near (insertion). The area between the two
    curves is 0 on average for random orders.

    Sums of effects must predict the change by masking one or two segments, and by
    showing them with all others masked; see :data:`RULES`.

    Args:
        run: the forecast that is explained.
        explanations: results of kind "input_attribution" by name, or scores (segment,).
            The first is under test; a single result is named by its method.
        item: the item that is explained, by position or name; the only one if None.
        target: its target, by position or name.
        parts: segments of the explanations: their largest number in the target's past,
            or a dict of ``parts``, ``season``, ``others`` and ``cuts``; those of the
            first result if None.
        reference: values of masked steps, as in the explanations: one of
            :data:`REFERENCES`, a dict with one for each role ("target", "past",
            "known"), or (time + horizon,) for each series.
        orders: number of random orders.
        twin: also try the explanation of the untrained twin; by default for models of
            up to 20 million weights.
        seed: of all random draws.
        progress: called with the masks done and their number.

    Returns:
        Dataset of kind "deletion_curves".

        - Over (explanation, masked), in data units: ``deletion`` and ``insertion`` are
          the mean absolute distance of the median forecast from the full one, without
          the first ``masked`` segments or with them alone. For random orders these are
          ``random_deletion`` and ``random_insertion`` (draw, masked), with 95 % bands
          ``random_low`` and ``random_high`` (curve, masked).
        - ``area`` (explanation): the area between the curves as a share of the distance
          with everything masked; ``random_area`` (draw) for random orders; ``p``
          (explanation), the share of random orders, the tested one included, that are
          as good.
        - ``order`` (explanation, rank): segments by position, most important first.
        - Over sets of segments (``hidden``, (set, segment)) and steps: ``measured``
          effects, and those ``predicted`` by each explanation. Their agreement is
          ``r2``, ``slope`` and ``sign_agreement`` (explanation), NaN of scores.
        - ``control_r2`` (explanation, control): the same of controls, which must
          predict worse; NaN where it was not tried. ``segment_control_r2``
          (explanation, segment, segment_control): that of the explanation with one
          segment's effect at 0, or its sign flipped.
        - ``segment_agreement`` (explanation, segment): how well the sets with a segment
          agree on its effect, which is what remains of theirs without the stated
          effects of other segments; or on what remains without its own as well, if
          that is more. It is 1 if they are the same, 0 for chance, and 0 for less than
          1 % of the change by all segments.

    Source:
        Samek et al. 2017; Petsiuk et al. 2018.

    Raises:
        InputError: no explanation, another number of scores than segments, fewer than
            two segments, orders is not a count, or masking moves the forecast by no
            more than its noise.
        UnknownNameError: no such item, target or reference.

    Example:
        >>> scores = {"newest first": [0, 1, 2]}
        >>> curves = explain.deletion_curves(
        ...     run, scores, parts=3, reference="mean", orders=4
        ... )
        >>> curves["deletion"].sizes["masked"]
        4
    """
    if not is_count(orders):
        raise InputError(
            f"orders is {orders!r}, expected a number of random orders, 1 or more"
        )
    if isinstance(explanations, xr.Dataset):
        explanations = {
            str(explanations.attrs.get("method", "explanation")): explanations
        }
    if not explanations:
        raise InputError(
            "there is no explanation to test: give results or scores by name"
        )
    if parts is None:
        parts = next(
            (
                read_segments(explanation)
                for explanation in explanations.values()
                if isinstance(explanation, xr.Dataset)
            ),
            None,
        )
    masks = Masks(run, parts, reference, item, target, seed, progress)
    players = len(masks.segments)
    if players < 2:
        raise InputError("one segment has no order; cut the input into more parts")
    scores = {
        name: rank_segments(explanation, players)
        for name, explanation in explanations.items()
    }
    rankings = np.stack(
        [np.argsort(-score, kind="stable") for score in scores.values()]
    )
    rng = np.random.default_rng(seed)
    permutations = np.stack([rng.permutation(players) for _ in range(orders)])
    count = len(scores)
    # the first ``count`` rows are of explanations, the others of random orders
    deletion, insertion = _curves(masks, np.concatenate([rankings, permutations]))
    # with everything masked all orders are the same, so any row will do
    everything = deletion[0, -1]
    floor = noise_floor(masks.run, lambda other, plain: np.abs(other - plain).mean(-1))
    if everything <= floor[masks.row]:
        raise InputError(
            f"the forecast of {masks.name!r} changes by no more than its noise when all"
            " segments are masked, so no order is better than another; choose another"
            " reference"
        )
    # points of a curve are equally spaced, so that their mean stands for the area under
    # it; a good order moves the forecast early in both curves
    area = (deletion - insertion).mean(-1) / everything
    axes = ("explanation", "masked")
    tail = (1 - CONFIDENCE) / 2
    bands = np.quantile(
        np.stack([deletion[count:], insertion[count:]]), [tail, 1 - tail], axis=1
    )
    # the order itself is among those that are as good, so that no p is 0
    as_good = (area[count:] >= area[:count, None]).sum(-1)
    coords = segment_coords(masks.segments)
    coords |= {
        "explanation": list(scores),
        "masked": np.arange(players + 1),
        "curve": ["deletion", "insertion"],
    }
    data = masks.run.dataset().assign_coords(coords)
    data = data.assign(
        deletion=(axes, deletion[:count]),
        insertion=(axes, insertion[:count]),
        random_deletion=(("draw", "masked"), deletion[count:]),
        random_insertion=(("draw", "masked"), insertion[count:]),
        random_low=(("curve", "masked"), bands[0]),
        random_high=(("curve", "masked"), bands[1]),
        area=(axes[:1], area[:count]),
        random_area=(("draw",), area[count:]),
        p=(axes[:1], (1 + as_good) / (1 + orders)),
        order=(("explanation", "rank"), rankings),
        everything_masked=((), float(everything)),
    )
    data = data.assign(_predictions(masks, list(explanations.values()), twin, seed))
    data = data.assign_coords(
        control=list(CONTROLS), segment_control=list(SEGMENT_CONTROLS)
    )
    return data.assign_attrs(
        units=masks.units,
        reference=reference_label(reference),
        target=masks.name,
        orders=orders,
    )


def _curves(masks: Masks, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (order, masked) from the full forecast, deletion and insertion.

    Deletion hides the first segments of each order; insertion shows them alone.
    """
    players = orders.shape[1]
    # the argsort of a permutation is its inverse, here the rank of each segment
    ranks = np.argsort(orders, axis=1)
    # (order, masked, segment): the first ``masked`` segments of the order
    first = ranks[:, None, :] < np.arange(players + 1)[:, None]
    keep = np.stack([~first, first]).reshape(-1, players)
    all_shown = np.ones((1, players), dtype=bool)
    forecasts = masks(np.concatenate([all_shown, keep]))[:, masks.middle]
    deletion, insertion = (
        np.abs(forecasts[1:] - forecasts[0])
        .mean(-1)
        .reshape(2, len(orders), players + 1)
    )
    return deletion, insertion


def rank_segments(explanation: Any, players: int) -> np.ndarray:
    """Return the importance (segment,) that an explanation gives each segment.

    It is the mean size over steps at the median, or the scores as given.
    """
    effects = median_effects(explanation)
    if effects is None:
        scores = np.asarray(explanation, dtype=float)
    else:
        scores = np.abs(effects).mean(-1)
    if scores.shape != (players,) or not np.isfinite(scores).all():
        raise InputError(
            f"an explanation has scores of shape {scores.shape}, expected {players}"
            " numbers, one a part"
        )
    return scores


def median_effects(explanation: Any) -> Any:
    """Return effects (segment, step) at the median; None if only scores are given."""
    if not isinstance(explanation, xr.Dataset):
        return None
    values = explanation["attribution"]
    if "quantile" in values.dims:
        median = np.argmin(np.abs(values["quantile"].values - 0.5))
        values = values.isel(quantile=int(median))
    return values.transpose("segment", ...).values


def _predictions(
    masks: Masks, explanations: Sequence[Any], twin: bool | None, seed: int
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Return effects of one and two segments, and how well they are predicted.

    The segments are masked, and shown alone. The predictions are those of explanations
    and of their controls.
    """
    rng = np.random.default_rng([seed, 1])
    players = len(masks.segments)
    all_pairs = rng.permutation(list(combinations(range(players), 2)))
    # at least one pair, since the control of exchanged segments is a maximum over pairs
    pairs = all_pairs[: max(_MAX_SETS - players, 1)]
    singles = np.eye(players, dtype=bool)
    hidden = np.concatenate([singles, singles[pairs].any(1)])
    all_and_none = np.array([[True] * players, [False] * players])
    # all shown, none shown, then each set masked, then each set shown alone
    keep = np.concatenate([all_and_none, ~hidden, hidden])
    # Shapley values are made of the forecasts under these very masks; those of a noisy
    # copy are forecasts that no explanation has seen
    spreads = [NOISE * np.nanstd(value) for value in masks.run.batch.values]
    noisy = with_noise(masks.run, spreads, seed)
    # replace() gives the copy an empty cache of its own; the item is 0, since
    # ``masks.run`` holds only the one that is explained
    noisy_masks = replace(masks, run=noisy, item=0)
    forecasts = noisy_masks(keep)[:, masks.middle]
    full, empty = forecasts[:2]
    without, alone = np.split(forecasts[2:], 2)
    # the mean of both ends: what a set does with all others shown, and with none
    measured = (full - without + alone - empty) / 2
    # scores have an order and no sizes, so every prediction from them is NaN
    unknown = np.full((players, measured.shape[1]), np.nan)
    effects = [
        unknown if explanation is None else explanation
        for explanation in map(median_effects, explanations)
    ]
    predicted = np.stack([hidden @ effect for effect in effects])
    controls = []
    by_segment = []
    agreements = []
    negligible = SMALLEST * np.abs(full - empty).mean()
    rival_predictions = [
        [hidden @ rival_effect]
        for rival_effect in _rival_effects(masks, unknown.shape, twin, seed)
    ]
    for effect, prediction in zip(effects, predicted, strict=True):
        # Segment i has the effect of j, and j that of i. A set with one of the two then
        # changes by their difference, and a set with both not at all.
        exchanged = [
            prediction
            + np.outer(hidden[:, i] * 1.0 - hidden[:, j], effect[j] - effect[i])
            for i, j in pairs
        ]
        # in the order of CONTROLS; the best of each group counts
        groups = [
            [-prediction],
            [hidden @ (np.sign(effect) * np.abs(effect).mean())],
            exchanged,
            *rival_predictions,
        ]
        controls.append(
            [
                max(agreement(measured, control)[0] for control in group)
                for group in groups
            ]
        )
        # sums without a segment's effect, and with its sign flipped
        without_one = [
            prediction - np.outer(hidden[:, i], effect[i]) for i in range(players)
        ]
        flipped = [
            prediction - 2 * np.outer(hidden[:, i], effect[i]) for i in range(players)
        ]
        by_segment.append(
            [
                [agreement(measured, control)[0] for control in pair]
                for pair in zip(without_one, flipped, strict=True)
            ]
        )
        remainders = [
            (measured - sum_of_others)[hidden[:, i]]
            for i, sum_of_others in enumerate(without_one)
        ]
        agreements.append(
            [
                _alike(remainder, stated, negligible)
                for remainder, stated in zip(remainders, effect, strict=True)
            ]
        )
    scores = np.array([agreement(measured, prediction) for prediction in predicted])
    axis = ("explanation",)
    names = ("r2", "slope", "sign_agreement")
    return {
        "hidden": (("set", "segment"), hidden),
        "measured": (("set", "step"), measured),
        "predicted": (("explanation", "set", "step"), predicted),
        "control_r2": (("explanation", "control"), np.array(controls)),
        "segment_control_r2": (
            ("explanation", "segment", "segment_control"),
            np.array(by_segment),
        ),
        "segment_agreement": (("explanation", "segment"), np.array(agreements)),
        **{name: (axis, column) for name, column in zip(names, scores.T, strict=True)},
    }


def _alike(remainders: np.ndarray, effect: np.ndarray, negligible: float) -> float:
    """Return how well the sets that hold a segment agree on its effect.

    ``remainders`` (set, step) are the effects of sets less the stated effects of their
    other segments. The result is the larger agreement of these, and of these less the
    segment's own stated effect. Agreement is the intraclass correlation: the mean
    product of two sets over the mean square of one.
    """
    best = 0.0
    for remainder in (remainders, remainders - effect):
        count = len(remainder)
        mean = remainder.mean(0)
        square = np.square(remainder).sum(-1).mean()
        if count > 1 and np.abs(mean).mean() > negligible:
            # products of all pairs of sets: the square of their sum, less their squares
            best = max(best, (count * np.square(mean).sum() / square - 1) / (count - 1))
    return float(best)


def _rival_effects(
    masks: Masks, shape: tuple[int, ...], twin: bool | None, seed: int
) -> list[np.ndarray]:
    """Return effects by occlusion for shuffled values, and for the untrained twin.

    They are (segment, step), NaN where a forecast is refused or no twin is tried.
    """
    run = masks.run
    effects = [np.full(shape, np.nan) for _ in range(2)]
    # the same model on the same values in another order; without ``_of``, since a run
    # takes its forecast from the run named there
    runs = [
        replace(
            run,
            batch=in_random_order(run.batch, [seed, 0]),
            full_batch=None,
            forced_path=None,
            _of=None,
        )
    ]
    if twin is None:
        parameters = run.lens.adapter.model.parameters()
        twin = sum(parameter.numel() for parameter in parameters) <= _TWIN_WEIGHTS
    if twin:
        untrained = untrained_twin(run.lens, seed)
        runs.append(replace(run, lens=untrained, forced_path=None, _of=None))
    options = {
        "reference": masks.reference,
        "parts": masks.segments,
        "target": masks.target,
        "seed": seed,
    }
    for index, other_run in enumerate(runs):
        # random weights may forecast NaN, which is refused: the control stays NaN
        with suppress(InputError):
            effects[index] = median_effects(
                # occlusion takes one forecast a segment where Shapley values would take
                # thousands
                input_attribution(other_run, 0, "occlusion", repeats=1, **options)
            )
    return effects


def agreement(
    measured: np.ndarray, predicted: np.ndarray
) -> tuple[float, float, float]:
    """Compare a prediction with a measured change.

    Returns:
        R² of the prediction; the slope of the change on it; and the share of the change
        with the sign of the prediction.
    """
    measured_square, predicted_square, measured_size = (
        # where nothing changes, or nothing is predicted, 0 would be divided by 0
        np.maximum(values.sum(), np.finfo(float).tiny)
        for values in (np.square(measured), np.square(predicted), np.abs(measured))
    )
    explained = 1 - np.square(measured - predicted).sum() / measured_square
    slope = (measured * predicted).sum() / predicted_square
    has_same_sign = np.sign(measured) == np.sign(predicted)
    same_sign = np.abs(measured)[has_same_sign].sum() / measured_size
    return float(explained), float(slope), float(same_sign)
