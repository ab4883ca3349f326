"""Several models on one axis: what they can lose, and whose parts do the same.

:func:`compare_models` removes a growing share of each model's heads or MLPs, in order
of stable rank and at random, and pairs up the components of different models by what
the forecast loses without them. Which heads an order takes is in ``recipes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates, digest_series
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import LEVEL, SMALLEST, ratio
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.wiring import Mlp
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import (
    cached_flat_contexts,
    forecast_rounding,
    keep_above_rounding,
    noise_floor,
    ranges,
)
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import attention_over_time
from tsfm_lens.probes.given import called, check_option
from tsfm_lens.probes.recipes import heads_by_stable_rank, random_heads
from tsfm_lens.probes.sites import component_coords
from tsfm_lens.probes.weights import stable_rank
from tsfm_lens.probes.zero_ablation import forecast_ablations, make_ablations

__all__ = ["compare_models"]

ORDERS = ("low", "high")
PARTS = ("heads", "mlps")
SHUFFLES = 999
"""Orders of the series by which the floor of a match is drawn, at least."""


@probe(
    "runs",
    title="Models on one axis",
    theme="Causes",
    summary=(
        "several models: error by the share of heads removed, in order of stable rank "
        "and at random, and components with the same effect"
    ),
    description=(
        "Heads are removed in order of their stable rank, in the reverse order, and in "
        "random orders, which say what removing as many costs by chance. Components of "
        "two models match if the forecasts lose the same without them."
    ),
    source="tsfm-lens paper, definition 5.2 and appendix B (S3-ORD, S3-H1PP)",
    subject="{model}, on the same series",
    cost="search",
)
def compare_models(
    runs: Sequence[Run],
    *,
    parts: str = "heads",
    draws: int = 20,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Compare models by what they can lose, and match their components.

    As many heads are removed from every layer of the output stack, those of lowest or
    of highest stable rank first, or at random; the other attentions of a layer over
    time lose the heads of the same indices. MLPs are removed one by one, by the stable
    rank of their output matrix.

    Components are heads and MLPs of all stacks, each set to zero alone, that move the
    forecast by 1 % of the range or more in the median over series. The similarity of
    two components of different models is the cosine of what the forecasts lose without
    them, mean over series. A component matches the most similar one of another model,
    if that similarity is beyond its floor: what components of the same sizes, and as
    many, reach by chance, which are the other model's own on other series.

    Args:
        runs: one of each model, of the same series, horizon and truth. Where they are
            single forwards, a token model's decoder follows the complete model's path;
            with ``rollout=True`` each model follows its own.
        parts: "heads" or "mlps", what is removed.
        draws: random orders.
        seed: of the random orders and of the floor.
        progress: called with (done, of), in models.

    Returns:
        Dataset of kind "compare_models":

        - ``share`` (model, removed): share of the heads (or MLPs) that are removed, NaN
          beyond the model's own number.
        - ``error`` (model, series): mean absolute error of the complete model, in data
          units.
        - ``error_ratio`` (model, order, removed, series): the error over that.
        - ``random_error_ratio`` (model, draw, removed, series): the same in random
          orders.
        - ``excess`` (model, order, removed, series): logarithm of the error over the
          median one of the random orders, with what :func:`.estimates.add_estimates`
          adds.
        - ``random_below`` (model, order, removed): share of the random orders whose
          median error over series is no larger.

        Of several models also, NaN between a model and itself and for components that
        hardly move the forecast; a ``part`` is "MODEL: COMPONENT":

        - ``match`` (part, other_model): the most similar component.
        - ``similarity`` (part, other_model): its cosine, -1 to 1.
        - ``matched`` (part, other_model): whether that is beyond the floor.
        - ``floor`` (model, other_model): similarity reached by chance.
        - ``matched_share`` (model, other_model): share of the components that match.
        - ``effect`` (part, series): mean change as a share of the range.

    Raises:
        InputError: there is no truth; two models have one name, or other series; a
            model has no attention over time, or no MLPs; every series is flat.

    Example:
        >>> truth = [[1.0, 2.0]]
        >>> one = lens.run(run.batch, 2, truth=truth)
        >>> data = probes.compare_models([one], draws=2)
        >>> data["share"].values.tolist()
        [[0.0, 0.25, 0.5, 0.75, 1.0]]
    """
    check_option("parts", parts, PARTS)
    models = _check_runs(runs)
    if not is_count(draws):
        raise InputError(f"draws is {draws!r}, expected 1 or more random orders")
    names = list(models)
    first = models[names[0]]
    targets = np.flatnonzero(first.batch.is_target)
    curves = []
    effects = []
    for number, run in enumerate(models.values(), 1):
        curves.append(_measure_removals(run, parts, draws, seed))
        if len(models) > 1:
            effects.append(_measure_effects(run))
        if progress is not None:
            progress(number, len(models))
    # a flat forecast still has an error and effects, unlike a flat context
    flat = np.any([cached_flat_contexts(run) for run in models.values()], axis=0)
    data = first.dataset().assign_coords(flat=("series", flat), model=names)
    data = data.isel(series=targets)
    if data["flat"].all():
        raise InputError("every series is flat, so that no models can be compared")
    # NaN where a model has fewer parts than another
    joined = xr.concat(curves, "model", join="outer").isel(series=targets)
    data = _add_curves(data, joined)
    if len(models) > 1:
        data = _add_matches(data, names, effects, targets, seed)
    data.attrs = {
        "model": ", ".join(names),
        "parts": parts,
        "draws": draws,
        "seed": seed,
        "horizon": first.horizon,
        "rollout": int(first.rollout),
    }
    return data


def _check_runs(runs: Any) -> dict[str, Run]:
    """Return runs by the name of their model; refuse what cannot be compared."""
    # a single thing, so that what is no run is refused as what it is
    if not isinstance(runs, list | tuple):
        runs = [runs]
    models: dict[str, Run] = {}
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(
                "probes.compare_models takes runs, as lens.run(series, horizon,"
                f" holdout=True) gives, one a model; this is {called(run)}"
            )
        name = run.lens.model_id
        if name in models:
            raise InputError(
                f"two models are called {name!r}, expected names that tell them apart"
            )
        if run.truth is None:
            raise InputError(
                f"the run of {name} has no truth to take errors from; make it with"
                " holdout=True or truth=…"
            )
        models[name] = run
    if not models:
        raise InputError("no run is given; expected one or more, each of another model")
    first, *others = models.values()
    for other in others:
        _check_same(first, other)
    return models


def _check_same(first: Run, other: Run) -> None:
    """Refuse runs that differ in more than the model."""
    assert first.truth is not None
    assert other.truth is not None
    labels = (first.lens.model_id, other.lens.model_id)
    for what in ("horizon", "rollout"):
        values = [getattr(run, what) for run in (first, other)]
        if values[0] != values[1]:
            raise InputError(
                f"the run of {labels[0]} has {what} {values[0]}, that of {labels[1]}"
                f" {values[1]}; make all with the same {what}"
            )
    same = first.batch.ids == other.batch.ids and np.array_equal(
        first.truth, other.truth, equal_nan=True
    )
    # a model that reads less has a shorter context, with the same end
    for one, two in zip(first.batch.values, other.batch.values, strict=False):
        steps = min(one.shape[-1], two.shape[-1])
        ends = (one[..., -steps:], two[..., -steps:])
        same = same and np.array_equal(*ends, equal_nan=True)
    if not same:
        raise InputError(
            f"the runs of {labels[0]} and {labels[1]} are of other series or truths;"
            " make both of the same series, with the same holdout"
        )


def _measure_removals(run: Run, parts: str, draws: int, seed: int) -> xr.Dataset:
    """Return errors without a growing share of the parts, in all orders.

    The result has the errors that :func:`compare_models` returns of one model, and
    ``rounding`` (series,), the noise floor of the logarithm of such a ratio.
    """
    assert run.truth is not None
    steps = slice(run.first_step, None)
    truth = run.truth[:, steps]
    if parts == "heads":
        orders = _head_orders(run.lens, draws, seed)
    else:
        orders = _mlp_orders(run.lens, draws, seed)
    # several orders remove the same parts, at both ends all of them
    sets = list(dict.fromkeys(tuple(parts) for order in orders for parts in order))
    variants = [Variant.zero(*components) for components in sets if components]
    forecasts = iter(point_forecasts(run, variants))
    by_set = {
        components: next(forecasts) if components else run.point for components in sets
    }
    plain = mae(run.point[:, steps], truth)
    # an error within rounding is none that another could be a multiple of
    denominator = np.where(plain > forecast_rounding(run), plain, np.nan)
    ratios = np.array(
        [
            [
                ratio(mae(by_set[tuple(parts)][:, steps], truth), denominator)
                for parts in order
            ]
            for order in orders
        ]
    )

    def logarithm(other: np.ndarray, unchanged: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            quotient = mae(other[:, steps], truth) / mae(unchanged[:, steps], truth)
            return np.asarray(np.abs(np.log(quotient)))

    count = len(orders[0]) - 1
    axes = ("removed", "series")
    return xr.Dataset(
        {
            "share": ("removed", np.arange(count + 1) / count),
            "error": ("series", plain),
            "error_ratio": (("order", *axes), ratios[: len(ORDERS)]),
            "random_error_ratio": (("draw", *axes), ratios[len(ORDERS) :]),
            "rounding": ("series", noise_floor(run, logarithm)),
        },
        {"order": list(ORDERS), "draw": range(draws), "removed": range(count + 1)},
    )


Order = list[list[Component]]
"""What is removed after none, one, two … steps."""


def _head_orders(lens: Lens, draws: int, seed: int) -> list[Order]:
    """Return heads by stable rank, from both ends, and at random.

    A step is one head of every layer.
    """
    stack = lens.wiring.output_stack
    if not stack.attention_kinds():
        raise InputError(
            f"{lens.model_id} has no attention, so that it has no heads to remove;"
            " parts='mlps' removes MLPs"
        )
    _, layers = stack.find_layers(attention_over_time(stack))

    def keep(removed: int) -> dict[int, int]:
        return dict.fromkeys(layers, stack.n_heads - removed)

    steps = range(stack.n_heads + 1)
    ordered = [
        [heads_by_stable_rank(lens, keep(step), order=order) for step in steps]
        for order in ORDERS
    ]
    random = [
        [random_heads(lens, keep(step), seed=seed + draw) for step in steps]
        for draw in range(draws)
    ]
    return [*ordered, *random]


def _mlp_orders(lens: Lens, draws: int, seed: int) -> list[Order]:
    """Return MLPs by the stable rank of their output matrix, and at random."""
    stack = lens.wiring.output_stack
    mlps = [
        Component(stack.name, layer, writer.kind)
        for layer in range(stack.n_layers)
        for writer in stack.rows(layer)
        if isinstance(writer, Mlp)
    ]
    if not mlps:
        raise InputError(
            f"{lens.model_id} has no MLPs whose matrices its wiring names;"
            " parts='heads' removes heads"
        )
    ranks = [_output_rank(lens, mlp) for mlp in mlps]
    low = np.argsort(ranks, kind="stable")
    random = [
        np.random.default_rng(seed + draw).permutation(low) for draw in range(draws)
    ]
    return [
        # in model order, by which equal sets are known
        [[mlps[at] for at in sorted(order[:step])] for step in range(len(mlps) + 1)]
        for order in (low, low[::-1], *random)
    ]


def _output_rank(lens: Lens, mlp: Component) -> float:
    """Compute the stable rank of the output matrix of an MLP, NaN if it is zero."""
    matrix = lens.weights.mlp(mlp.layer, str(mlp.kind), mlp.stack).W_out
    values = torch.linalg.svdvals(matrix.detach().double())
    return float(stable_rank(values.cpu().numpy()))


def _add_curves(data: xr.Dataset, curves: xr.Dataset) -> xr.Dataset:
    """Add the errors of all models, and test the orders against chance."""
    varies = ~data["flat"]
    ordered = curves["error_ratio"].where(varies)
    random = curves["random_error_ratio"].where(varies)
    # a forecast that equals the truth has no error, and no logarithm
    with np.errstate(divide="ignore"):
        logarithm = xr.apply_ufunc(np.log, ordered)
        excess = logarithm - xr.apply_ufunc(np.log, random).median("draw")
    is_larger = ordered.median("series") >= random.median("series")
    # where no part is removed, or all of them, every order is the same
    is_choice = (curves["share"] > 0) & (curves["share"] < 1)
    data = data.assign(
        share=curves["share"],
        error=curves["error"],
        error_ratio=ordered,
        random_error_ratio=random,
        excess=excess.where(is_choice),
        random_below=is_larger.mean("draw").where(is_choice),
    )
    return add_estimates(data, "excess", floor=curves["rounding"], signed=True)


@dataclass(frozen=True)
class _Effects:
    """What a model's forecast loses without each of its components.

    Attributes:
        components: heads and MLPs of all stacks.
        change: of the forecast, (component, series, step), as a share of the series'
            range; 0 where it is rounding.
    """

    components: list[Component]
    change: np.ndarray


def _measure_effects(run: Run) -> _Effects:
    """Ablate every head and MLP of a model alone."""
    wiring = run.lens.wiring
    components = [
        component
        for stack in wiring.stacks
        for component in writers(wiring, stack.name)
    ]
    ablations = make_ablations(run, components, "zero", None)
    ablated = forecast_ablations(run, ablations, "zero")
    forecasts = keep_above_rounding(run, ablated, run.point)
    spans = ranges(run, run.point)
    change = ratio(forecasts - run.point, spans[:, None], 0.0)
    return _Effects(components, change)


def _add_matches(
    data: xr.Dataset,
    names: Sequence[str],
    effects: Sequence[_Effects],
    targets: np.ndarray,
    seed: int,
) -> xr.Dataset:
    """Match the components of every two models, and add the floors of matches."""
    units = _distinct(data)
    changes = [effect.change[:, targets][:, units] for effect in effects]
    directions = [_directions(change) for change in changes]
    # what hardly changes the forecast does nothing that another could do as well
    in_play = [
        np.flatnonzero(np.median(np.abs(change).mean(-1), axis=-1) >= SMALLEST)
        for change in changes
    ]
    components = [part for effect in effects for part in effect.components]
    counts = [len(effect.components) for effect in effects]
    starts = np.cumsum([0, *counts])
    shape = (len(components), len(names))
    match = np.full(shape, "", dtype=object)
    similarity = np.full(shape, np.nan)
    matched = np.zeros(shape, dtype=bool)
    floors = np.full((len(names), len(names)), np.nan)
    shares = floors.copy()
    # one claim for each ordered pair of models: the level is shared among them
    level = LEVEL / (len(names) * (len(names) - 1))
    for row, column in permutations(range(len(names)), 2):
        own = in_play[row]
        theirs = in_play[column]
        if not len(own) or not len(theirs):
            continue
        by_series = np.einsum(
            "asd,btd->abst", directions[row][own], directions[column][theirs]
        )
        alike = np.trace(by_series, axis1=2, axis2=3) / len(units)
        floor = _draw_floor(by_series, level, seed)
        rows = starts[row] + own
        match[rows, column] = [
            str(effects[column].components[theirs[at]]) for at in alike.argmax(1)
        ]
        similarity[rows, column] = alike.max(1)
        matched[rows, column] = alike.max(1) > floor
        floors[row, column] = floor
        shares[row, column] = (alike.max(1) > floor).mean()
    owner_names = np.repeat(names, counts).tolist()
    coords = component_coords(components)
    labels = coords.pop("component")
    coords = {name: ("part", values) for name, (_, values) in coords.items()}
    sizes = [np.abs(effect.change[:, targets]).mean(-1) for effect in effects]
    data = data.assign_coords(
        part=[
            f"{name}: {label}" for name, label in zip(owner_names, labels, strict=True)
        ],
        part_model=("part", owner_names),
        part_component=("part", labels),
        other_model=list(names),
        **coords,
    ).assign(
        match=(("part", "other_model"), match.astype(str)),
        similarity=(("part", "other_model"), similarity),
        matched=(("part", "other_model"), matched),
        effect=(("part", "series"), np.concatenate(sizes)),
        floor=(("model", "other_model"), floors),
        matched_share=(("model", "other_model"), shares),
    )
    data["matched_share"].attrs = {"units_compared": len(units), "level": level}
    return data


def _distinct(data: xr.Dataset) -> np.ndarray:
    """Return the positions of series that differ and are not flat.

    A copy of a series would be no other series by which to draw a floor.
    """
    varying = np.flatnonzero(~data["flat"].values)
    _, first = np.unique(digest_series(data)[varying], return_index=True)
    return np.sort(varying[first])


def _directions(change: np.ndarray) -> np.ndarray:
    """Scale each change (component, series, step) to length 1; 0 stays 0."""
    length = np.linalg.norm(change, axis=-1, keepdims=True)
    return ratio(change, length, 0.0)


def _draw_floor(by_series: np.ndarray, level: float, seed: int) -> float:
    """Return the similarity that matches on other series exceed with chance ``level``.

    It is of the most similar of all pairs (Westfall and Young 1993), since the largest
    is what a match is.

    Args:
        by_series: cosines (component, other component, series, other series).
        level: chance.
        seed: of the orders of the series.

    Returns:
        The floor. Of few series a shuffle often is their own order, so that nothing
        exceeds it.
    """
    count = by_series.shape[-1]
    rng = np.random.default_rng(seed)
    rows = np.arange(count)
    # so many that a few of them may reach a match at the level
    shuffles = max(SHUFFLES, int(np.ceil(5 / level)))
    largest = [
        by_series[..., rows, rng.permutation(count)].mean(-1).max(initial=-1.0)
        for _ in range(shuffles)
    ]
    # the series' own order is one of those that count as reaching it
    allowed = int(level * (1 + shuffles)) - 1
    return float(np.sort(largest)[::-1][allowed])
