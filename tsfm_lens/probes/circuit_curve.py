"""Circuit curve: how faithful circuits of every size are that a ranking chooses.

:func:`circuit_curve` takes any ranking of components, keeps or removes its best ones,
and sums the curve up in two areas. Random orders say what a ranking is worth. How
faithful a set of components is, is measured as for :func:`.circuits.minimal_circuit`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, permutations, product
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.estimates import SMALLEST_SHARE, add_estimates, estimated_effects
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.run import Run
from tsfm_lens.probes.circuits import Behaviour, Bench, make_bench, single_effects
from tsfm_lens.probes.given import called
from tsfm_lens.probes.sites import component_coords, list_nodes

__all__ = ["circuit_curve"]

DIRECTIONS = ("best kept", "best removed")
_EXACT = 24  # orders of equal scores, up to which all are measured
_DRAWN = 8  # of more orders

Ranking = Mapping[Any, float] | xr.Dataset
"""Scores of components by name, or a result with a variable over ``component``."""


@probe(
    "first",
    title="Circuits of every size",
    theme="Causes",
    summary="faithfulness of circuits of every size by any ranking, with its areas",
    description=(
        "The best components of a ranking are kept, or removed, one more at a time. A "
        "good ranking soon has the forecast back, or soon loses it; random orders say "
        "how soon chance does."
    ),
    source="Mueller et al. 2025, arXiv:2504.13151 (CPR and CMD of MIB)",
    cost="search",
    example={"nodes": ["*.*.mlp"], "draws": 2},
)
def circuit_curve(
    run: Run,
    ranking: Ranking | None = None,
    corrupted: Run | None = None,
    *,
    variable: str = "",
    behaviour: Behaviour | None = None,
    nodes: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    draws: int = 5,
    seed: int = 0,
    most: int | None = None,
    smallest: float = SMALLEST_SHARE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the circuits of the best k components of a ranking, for every k.

    The share recovered by a circuit C is f(C) = (m(C) - m(nothing)) / (m(model) -
    m(nothing)), where m projects the behaviour onto the way from nothing to the model,
    and everything outside the circuit is ablated. It may lie outside 0 and 1. CPR is
    the area under f, and CMD the area under |1 - f|, over the share of components that
    are kept or removed. The benchmark MIB evaluates f at ten fixed shares, five of
    which are the empty circuit of a model with 33 components; here it is evaluated at
    every k. MIB also counts edges, and keeps the best only.

    Components of equal scores have no order, so what is returned is the mean over
    their orders: over all where there are at most 24, else over 8 random ones, each of
    which comes with its reverse. So no component gains by its place in the model, nor
    by being tied.

    Args:
        run: the run that shows the behaviour.
        ranking: scores of components by name, the larger the more important; or the
            result of a probe, of whose scores the sizes count, and of a circuit the
            order of removal. If None, the loss of faithfulness without each alone.
        corrupted: a run without the behaviour; if given, its activations replace what
            is ablated.
        variable: of a result, by which components are ranked; if "", its first effect
            of components.
        behaviour: the features of a forecast to keep, see :func:`minimal_circuit`.
        nodes: heads and branches to choose from; if None, all heads and MLPs that are
            ranked, or those of the output stack without a ranking.
        how: "zero", "mean", "resample" or "noise", which replaces what is ablated;
            only without ``corrupted``.
        reference: for "mean" and "resample", see :func:`minimal_circuit`.
        draws: random orders of the same components, for comparison.
        seed: of these, and of random orders of components with equal scores.
        most: number of sizes besides nothing, evenly spaced, for models with many
            components; every size if None or if there are no more.
        smallest: a series has no verdict if ablating every node changes its forecast by
            up to this share of its range.
        progress: called with the number of forecasts done, and of all.

    Returns:
        Dataset of kind "circuit_curve" over ``direction`` ("best kept" or "best
        removed") and ``size``, how many components are kept or removed:

        - ``recovered`` (direction, size, series): the share f.
        - ``faithfulness`` (direction, size, series): 1 - d(circuit, model) / d(nothing,
          model), as :func:`minimal_circuit` has it; never above 1.
        - ``cpr``, ``cmd`` (direction, series): the areas, with what
          :func:`.estimates.add_estimates` adds.
        - ``random_recovered`` (direction, size, draw): f of random orders, mean over
          the series that have a verdict.
        - ``random_cpr``, ``random_cmd`` (direction, draw): their areas.
        - ``score`` (component): of the ranking, the best first.
        - ``refused`` (series): whether the series has no verdict.

        The attribute ``orders`` is the number of orders that the curve of the ranking
        is a mean over, 1 without equal scores.

    Source:
        Mueller et al. 2025 (MIB), section 3; Wang et al. 2022 (faithfulness).

    Raises:
        InputError: the ranking has no scores of components, or lacks some; draws or
            most is no such number; and what :func:`minimal_circuit` refuses.
        UnknownNameError: no such component or variable.

    Example:
        >>> ranking = {"decoder.0.mlp": 1.0, "decoder.1.mlp": 2.0}
        >>> data = probes.circuit_curve(run, ranking)
        >>> data["component"].values.tolist()
        ['decoder.1.mlp', 'decoder.0.mlp']
    """
    # False is 0
    if not is_count(draws) and (draws is False or draws != 0):
        raise InputError(f"draws is {draws!r}, expected 0 or more random orders")
    if most is not None and not is_count(most):
        raise InputError(f"most is {most!r}, expected 1 or more sizes")
    if variable and not isinstance(ranking, xr.Dataset):
        raise InputError(
            f"variable={variable!r} is of a result, by which components are ranked;"
            f" ranking is {called(ranking)}"
        )
    given = None
    if ranking is not None:
        given = _read_scores(run, ranking, variable)
        if nodes is None:
            nodes = _ranked_nodes(run, given)
    bench = make_bench(
        run,
        corrupted,
        nodes=nodes,
        how=how,
        reference=reference,
        behaviour=behaviour,
        smallest=smallest,
    )
    components = list(bench.ablations)
    if given is None:
        scores = single_effects(bench)
    else:
        scores = {node: _score_of(node, given) for node in components}
    ranked = _orders_by_score(scores, np.random.default_rng([seed, 1]))
    rng = np.random.default_rng(seed)
    random = [
        [components[at] for at in rng.permutation(len(components))]
        for _ in range(draws)
    ]
    count = len(components)
    spaced = np.linspace(0, count, min(most or count, count) + 1)
    sizes = spaced.round().astype(int).tolist()
    forecasts = _forecast_curves(bench, [*ranked, *random], sizes, progress)
    return _dataset(bench, scores, sizes, forecasts, len(ranked)).assign_attrs(
        ranking=_name_ranking(ranking, variable),
        orders=len(ranked),
        draws=draws,
        seed=seed,
        **bench.parameters,
    )


def _read_scores(run: Run, ranking: Any, variable: str) -> dict[Component, float]:
    """Return the scores of heads and branches; others of a result are left out."""
    if isinstance(ranking, xr.Dataset):
        names, values = _result_scores(ranking, variable)
    elif isinstance(ranking, Mapping):
        if not ranking:
            raise InputError("ranking is empty; expected a score for each component")
        names = [str(name) for name in ranking]
        values = list(ranking.values())
    else:
        raise InputError(
            f"ranking is {called(ranking)}, expected scores by the name of a component,"
            " such as {'decoder.0.mlp': 1.0}, or the result of a probe with a variable"
            " over components"
        )
    scores = {}
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, int | float | np.number):
            raise InputError(
                f"the score of {name} is {value!r}, expected a number, the larger the"
                " more important"
            )
        # embeddings and biases of a result are no components, and layers no nodes
        if isinstance(ranking, xr.Dataset) and not _is_node(ranking, name):
            continue
        for site in list_nodes(run.lens, [name], "ranking"):
            scores[site.component] = float(value)
    return scores


def _is_node(result: xr.Dataset, name: str) -> bool:
    """Return whether a member of a result is a head or a branch."""
    layers = result["layer"].sel(component=name)
    kinds = result["kind"].sel(component=name)
    return bool(layers >= 0) and str(kinds.item()) != "layer"


def _result_scores(result: xr.Dataset, variable: str) -> tuple[list[str], list[Any]]:
    """Return the components of a result, and the size of a variable of each."""
    numbers = [
        str(name)
        for name, values in result.data_vars.items()
        if "component" in values.dims and values.dtype.kind in "iuf"
    ]
    if not numbers or "layer" not in result.coords:
        raise InputError(
            f"the result of kind {result.attrs.get('kind')!r} has no numbers over"
            " components to rank them by; give scores by name, such as"
            " {'decoder.0.mlp': 1.0}"
        )
    if variable and variable not in numbers:
        raise unknown_name("variable", variable, numbers)
    names = list(map(str, result["component"].values))
    if result.attrs.get("kind") == "minimal_circuit" and not variable:
        # what was removed late matters more, and what stays most
        taken = result["taken"]
        late = taken.where(~result["in_circuit"], result.sizes["component"])
        return names, late.values.tolist()
    effects = [name for name in estimated_effects(result) if name in numbers]
    name = variable or [*effects, *numbers][0]
    # the size that a result states goes before the plain mean
    values = result.get(f"{name}_size", result[name])
    others = [dim for dim in values.dims if dim != "component"]
    sizes = abs(values).mean(others)
    return names, sizes.values.tolist()


def _ranked_nodes(run: Run, scores: Mapping[Component, float]) -> list[Component]:
    """Return the heads and MLPs that are ranked, in the order of the model."""
    wiring = run.lens.wiring
    candidates = chain.from_iterable(
        writers(wiring, stack.name) for stack in wiring.stacks
    )
    ranked = [node for node in candidates if node in scores]
    # whole attentions, where heads are not ranked
    return ranked or list(scores)


def _score_of(node: Component, scores: Mapping[Component, float]) -> float:
    """Return the score of a node; one that is no number is the lowest."""
    if node not in scores:
        raise InputError(
            f"the ranking has no score of {node}; score every one of nodes, or name"
            " those that are scored"
        )
    score = scores[node]
    if np.isnan(score):
        return -np.inf
    return score


def _best_first(scores: Mapping[Component, float]) -> list[Component]:
    """Return the components of scores, equal ones in the order of the model."""
    return sorted(scores, key=lambda node: -scores[node])


def _orders_by_score(
    scores: Mapping[Component, float], rng: np.random.Generator
) -> list[list[Component]]:
    """Return orders with the best first: one, unless scores are equal.

    All places of a tie are equally frequent, or those of each component in a drawn
    order and its reverse have the middle of the tie as their mean. So areas are exact
    for effects that add up, whatever is drawn.
    """
    ties = [
        list(tie) for _, tie in groupby(_best_first(scores), lambda node: scores[node])
    ]
    if math.prod(math.factorial(len(tie)) for tie in ties) <= _EXACT:
        chosen = product(*map(permutations, ties))
        return [list(chain.from_iterable(order)) for order in chosen]
    orders = []
    for _ in range(_DRAWN // 2):
        drawn = [[tie[at] for at in rng.permutation(len(tie))] for tie in ties]
        backwards = [order[::-1] for order in drawn]
        orders += [list(chain.from_iterable(order)) for order in (drawn, backwards)]
    return orders


def _name_ranking(ranking: Any, variable: str) -> str:
    """Say in a word what the components are ranked by."""
    if ranking is None:
        return "single ablation"
    if isinstance(ranking, xr.Dataset):
        return variable or str(ranking.attrs.get("kind", "a result"))
    return "own scores"


def _forecast_curves(
    bench: Bench,
    orders: Sequence[Sequence[Component]],
    sizes: Sequence[int],
    progress: Progress | None,
) -> np.ndarray:
    """Forecast with the first of each order kept, and removed, for some numbers.

    Returns:
        (order, direction, size, series, step).
    """
    between = sizes[1:-1]
    ablated = [
        frozenset(part)
        for order in orders
        for part in chain(
            (order[size:] for size in between), (order[:size] for size in between)
        )
    ]
    # orders of a tie have most of their sets in common
    places = {part: at for at, part in enumerate(dict.fromkeys(ablated))}
    # in one call, as variants that run side by side share their forwards
    inner = bench.forecasts(list(places), progress)[[places[part] for part in ablated]]
    shape = bench.full.shape
    forecasts = np.empty((len(orders), 2, len(sizes), *shape))
    forecasts[:, :, 1:-1] = inner.reshape(len(orders), 2, len(between), *shape)
    # both ends of a curve are the model and nothing, in either order
    forecasts[:, 0, 0] = forecasts[:, 1, -1] = bench.nothing
    forecasts[:, 0, -1] = forecasts[:, 1, 0] = bench.full
    return forecasts


def _dataset(
    bench: Bench,
    scores: Mapping[Component, float],
    sizes: Sequence[int],
    forecasts: np.ndarray,
    n_ranked: int,
) -> xr.Dataset:
    """Return the curves of a ranking, their areas, and those of random orders.

    Of the forecasts (order, …), the first ``n_ranked`` are of the ranking.
    """
    order = _best_first(scores)
    n_nodes = len(order)
    axes = ("direction", "size", "series")
    recovered = xr.DataArray(bench.recovered(forecasts), dims=("draw", *axes))
    share = np.array(sizes) / n_nodes
    data = bench.run.dataset().assign_coords(component_coords(order))
    data = data.assign_coords(
        flat=("series", bench.flat),
        direction=list(DIRECTIONS),
        size=list(sizes),
        share=("size", share),
        draw=range(len(forecasts) - n_ranked),
    )
    curves = recovered[:n_ranked]
    curve = curves.mean("draw")
    random = recovered[n_ranked:].mean("series")
    areas = {
        "cpr": curve,
        "cmd": abs(1 - curves).mean("draw"),
        "random_cpr": random,
        "random_cmd": abs(1 - recovered[n_ranked:]).mean("series"),
    }
    data = data.assign(
        recovered=curve,
        faithfulness=(axes, bench.faithfulness(forecasts[:n_ranked]).mean(0)),
        score=("component", [scores[node] for node in order]),
        refused=("series", bench.no_verdict),
        random_recovered=random,
    )
    for name, values in areas.items():
        data[name] = values.assign_coords(size=share).integrate("size")
    for name in ("cpr", "cmd"):
        # an area over a width of 1 has the noise of its mean height, at most
        data = add_estimates(data, name, floor=bench.floor, signed=name == "cpr")
    return data
