"""Learned scores: units ranked by masks that are trained over all budgets.

:func:`learned_scores` scores heads, MLPs, hidden units or edges: a soft mask keeps the
best k of them, for a random k in every step, and the scores follow the gradient of what
the forecast loses. :class:`MaskLoss` is that loss and :func:`train_scores` the
training; ``tuned_weights`` uses both for rows of weights, and ``edge_masks`` masks
edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import Result
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Intervention, Mean, PatchFrom, Rows, Zero
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.scopes import RunState
from tsfm_lens.models.adapter import check_gradients
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.noise import cached_flat_contexts, forecast_rounding, ranges
from tsfm_lens.models.run import Run
from tsfm_lens.probes.edge_masks import EdgeMasks, edge_coords, list_edges
from tsfm_lens.probes.given import check_option
from tsfm_lens.probes.patching import contrast
from tsfm_lens.probes.sites import PatchSite, list_nodes, site_coords

__all__ = ["learned_scores"]

TEMPERATURE = 0.5
RATE = 0.05
_BISECTIONS = 50
_CHECKS = 10
"""Times that the training looks at held-out series."""
_CONSTANTS = 8
"""Constant masks at which units are attributed."""
_DIGITS = 4
"""Decimals of a mean loss that count."""
_MOST_SIZES = 40
"""Units up to which circuits of every size are measured; of more, a grid."""
_GRID = 25
_SOURCE = (
    "Matryoshka Attribution, arXiv:2609.25518 (soft top-k over budgets); Mueller et al."
    " 2025, arXiv:2504.13151 (budget curves of MIB)"
)


def learned_scores(
    run: Run,
    corrupted: Run | None = None,
    *,
    units: str = "components",
    nodes: Sequence[str | Component] | None = None,
    how: str = "zero",
    steps: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Score units by a soft mask that is trained to keep the forecast at every budget.

    In each step a number k of units is drawn, and the mask m = σ((s - τ) / T) of the
    scores s has the sum k. An activation becomes m h + (1 - m) h_base; of an edge, only
    for its receiver. The loss is ‖ŷ(m) - ŷ‖² / ‖ŷ(0) - ŷ‖², with errors as shares of
    the range of each series and both sums over series.

    Half of the series, drawn by seed, are held out. The best units are kept there and
    all others replaced, for circuits of every size, and those scores are returned whose
    circuits lose least. Candidates are, in this order:

    - "attribution": the mean of -∂L/∂m over constant masks, without training;
    - "single effects": the loss without each unit alone, if there are no more units
      than four times the steps, as parts behind a saturated gate have no gradient;
    - "pooled loss": a training from the best of those, looked at every few steps;
    - "loss of each series": another one, by the mean of the quotients of all series.

    For the few components of a small model, :func:`minimal_circuit` is as good and
    quicker. Learned scores are for units that are too many to be removed one by one.

    An edge is that of :func:`path_patching`: from a part to a later one that reads its
    stream, or to the output. The stream keeps all writes, and a part reads it less what
    masked edges carry. A mask that cuts one edge is a patched path; one that cuts
    several sets each receiver in turn to what it then computes.

    Args:
        run: the run that shows the behaviour, in one forward pass.
        corrupted: a run of the same series without the behaviour; if given, its
            activations are the base.
        units: "components" (heads and MLPs), "neurons", the hidden units of MLPs, or
            "edges". Of edges, all series run once for each head that reads other
            edges: of a large model, name few nodes.
        nodes: heads and branches to score, or the MLPs whose neurons, or between which
            and the output edges lead; those of the output stack if None.
        how: base of the mask without ``corrupted``: "zero", or "mean" over the series
            of the run at each position.
        steps: of Adam in each of the two trainings, with a rate of 0.05.
        seed: of the budgets and the division of the series.
        progress: called with (done, of), in steps of both trainings.

    Returns:
        Dataset of kind "learned_scores" over ``component``, ``neuron`` or ``edge``,
        which has its ``sender`` and ``receiver``:

        - ``score`` (component): less that of the lowest, as only differences matter.
        - ``kept`` (size, series): 1 - loss of the best units of each size, of held-out
          series. NaN of flat series, and where replacing all units changes the forecast
          by rounding alone.
        - ``loss`` (check): mean loss of held-out series over sizes, of each candidate.

        Coordinates of a check are its ``method`` and ``at``, the step, 0 without
        training. Attributes ``best_method`` and ``best_step`` say whose scores these
        are; of equal candidates it is the last.

    Raises:
        InputError: fewer than two series; series of one group, which see each other; a
            model without derivatives; a horizon beyond one pass; no MLP is named for
            neurons; of edges, a branch beside its heads, or heads before a norm;
            replacing all units changes no forecast; a corrupted run that is no pair of
            the run.
        UnknownNameError: no such component.

    Source:
        Matryoshka Attribution, arXiv:2609.25518; sizes of circuits as in MIB, Mueller
        et al. 2025.

    Example:
        >>> two = lens.run([[1.0, 2.0, 3.0, 2.0], [3.0, 1.0, 2.0, 4.0]], 2)
        >>> found = probes.learned_scores(two, nodes=["decoder.*.mlp"], steps=4)
        >>> dict(found["kept"].sizes)
        {'size': 4, 'series': 1}
    """
    check_option("units", units, ("components", "neurons", "edges"))
    check_option("how", how, ("zero", "mean"))
    if corrupted is not None and how != "zero":
        raise InputError(
            f"give either corrupted=… or how={how!r}, not both: each is the base"
        )
    if corrupted is not None:
        # a token model's decoder follows the path of the run that is changed
        pair = contrast(
            run.in_one_pass(), corrupted.in_one_pass(), (), direction="noise"
        )
        corrupted = pair.source
    sites = list_nodes(run.lens, nodes, "nodes")
    dim = units.removesuffix("s")
    loss: Callable[..., MaskLoss]
    if units == "edges":
        coords = edge_coords(sites, list_edges(run.lens, sites))
        loss = partial(_edge_loss, sites=sites)
    else:
        places = _list_places(run, sites, units)
        coords = site_coords(sites)
        if units == "neurons":
            coords = _neuron_coords(sites, places)
        loss = partial(_activation_loss, places=places)
    learning, held_out = (
        loss(part, corrupted, how, rows=rows) for part, rows in divide(run, 2, seed)
    )
    trained = train_scores(learning, held_out, len(coords[dim]), steps, seed, progress)
    part = held_out.run
    if corrupted is not None:
        how = "corrupted"
    data = part.dataset().assign_coords(coords)
    data = data.assign(trained.variables(dim))
    data.attrs = part.describe(
        "learned_scores",
        "Learned scores",
        _SOURCE,
        units=units,
        how=how,
        steps=steps,
        **trained.attributes,
        learned_on=len(learning.run.batch),
    )
    return Result(data.data_vars, data.coords, data.attrs)


def soft_top_k(scores: Tensor, budget: float) -> Tensor:
    """Return a mask in [0, 1] of the best units, whose sum is the budget.

    Its derivative is that of σ((s - τ) / T) with τ as a function of the scores s.

    Args:
        scores: (unit,).
        budget: more than 0, and less than the number of units.
    """
    share = budget / len(scores)
    width = TEMPERATURE * np.log(share / (1 - share))
    fixed = scores.detach()
    # all units at the lowest score would have this threshold, so the true one is higher
    low, high = fixed.min() - width, fixed.max() - width
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if torch.sigmoid((fixed - middle) / TEMPERATURE).sum() > budget:
            low = middle
        else:
            high = middle
    threshold = (low + high) / 2
    mask = torch.sigmoid((scores - threshold) / TEMPERATURE)
    # a step of Newton's method: it hardly moves a threshold that is found, and has its
    # derivative by the scores
    slope = (mask * (1 - mask)).sum().detach() / TEMPERATURE
    threshold = threshold + (mask.sum() - budget) / slope
    return torch.sigmoid((scores - threshold) / TEMPERATURE)


class MaskLoss:
    """Loss of forecasts under masks: 0 for the model, 1 for a mask of zeros.

    Attributes:
        run: whose series these are.
        forecast: of a mask (unit,), in data units (series, step).
        full, nothing: forecasts of masks of ones and zeros.
    """

    def __init__(
        self, run: Run, forecast: Callable[[Tensor], Tensor], count: int
    ) -> None:
        self.run = run
        self.forecast = forecast
        ones = torch.ones(count, device=run.lens.device)
        with torch.no_grad():
            self.full = forecast(ones)
            self.nothing = forecast(torch.zeros_like(ones))
        gap = (self.full - self.nothing).square().sum(-1)
        floor = gap.new_tensor(forecast_rounding(run))
        # series that the mask does not move have no loss, nor have flat ones: a share
        # of their range would outweigh all others
        flat = torch.tensor(cached_flat_contexts(run), device=gap.device)
        self.known = (gap > run.horizon * floor.square()) & ~flat
        self._gap = torch.where(self.known, gap, torch.nan)
        span = gap.new_tensor(ranges(run, run.point))
        share = (gap / span.square())[self.known]
        self._weights = share / share.mean()

    def by_series(self, mask: Tensor) -> Tensor:
        """Return the loss of each series, (series,)."""
        return self.of(self.forecast(mask))

    def of(self, forecasts: Tensor) -> Tensor:
        """Return the loss (…, series) of forecasts (…, series, step)."""
        return (forecasts - self.full).square().sum(-1) / self._gap

    def even(self, mask: Tensor) -> Tensor:
        """Return the mean loss, in which all series count the same."""
        return self.by_series(mask)[self.known].mean()

    def mean(self, mask: Tensor) -> Tensor:
        """Return the mean loss, by the share of its range that each series can move.

        Else a series that hardly moves would outweigh all others where a mask moves it
        far.
        """
        return self.pooled(self.by_series(mask))

    def pooled(self, losses: Tensor) -> Tensor:
        """Return the weighted mean (…) of losses (…, series)."""
        return (losses[..., self.known] * self._weights).mean(-1)


@dataclass(frozen=True)
class Candidate:
    """Scores that held-out series have looked at.

    Attributes:
        method: that made them.
        step: of this training, 0 if the scores are not trained.
        scores: (unit,).
        lost: loss of held-out series by the best units of each size (size, series).
        loss: its mean over sizes and series.
    """

    method: str
    step: int
    scores: Tensor
    lost: Tensor
    loss: float


@dataclass(frozen=True)
class Trained:
    """All candidates, in the order of their making, and the sizes of their circuits."""

    candidates: list[Candidate]
    sizes: list[int]

    @property
    def best(self) -> Candidate:
        """The candidate by which held-out series lose least, of equal ones the last."""
        lowest = min(round(each.loss, _DIGITS) for each in self.candidates)
        equal = [
            each for each in self.candidates if round(each.loss, _DIGITS) == lowest
        ]
        return equal[-1]

    @property
    def scores(self) -> np.ndarray:
        """The best scores (unit,), less the lowest of them."""
        scores = self.best.scores.cpu().double().numpy()
        return np.asarray(scores - scores.min())

    def variables(self, dim: str) -> dict[str, Any]:
        """Return the variables of a result, with the coordinates of their own."""
        return {
            "score": (dim, self.scores),
            "kept": (("size", "series"), 1 - self.best.lost.cpu().double().numpy()),
            "loss": ("check", [each.loss for each in self.candidates]),
            "size": self.sizes,
            "method": ("check", [each.method for each in self.candidates]),
            "at": ("check", [each.step for each in self.candidates]),
        }

    @property
    def attributes(self) -> dict[str, Any]:
        """Return which candidate is the best."""
        return {"best_step": self.best.step, "best_method": self.best.method}


def train_scores(
    learning: MaskLoss,
    held_out: MaskLoss,
    count: int,
    steps: int,
    seed: int,
    progress: Progress | None = None,
    *,
    known: Mapping[str, Tensor] = MappingProxyType({}),
) -> Trained:
    """Score units without training and by two trainings, and rank the candidates.

    Both trainings start at the best of the scores that are not trained.

    Args:
        learning: loss of the series to learn from.
        held_out: that of the series by which a candidate is chosen.
        count: number of units.
        steps: of each training.
        seed: of the budgets.
        progress: called with (done, of), in steps.
        known: candidates that cost nothing, by name (unit,).

    Returns:
        All candidates.
    """
    if not is_count(steps):
        raise InputError(f"steps is {steps!r}, expected a number of steps of 1 or more")
    if count < 2:
        raise InputError(f"there is {count} unit to score, expected 2 or more")
    if not (learning.known.any() and held_out.known.any()):
        raise InputError(
            "replacing all units changes no forecast of a series that is not flat by"
            " more than rounding, so there is nothing to learn; give series that the"
            " units move, or more of these"
        )
    trained = Trained([], list_sizes(count))

    def look(method: str, step: int, scores: Tensor) -> None:
        lost = measure_sizes(held_out, scores, trained.sizes)
        loss = float(held_out.pooled(lost).mean())
        trained.candidates.append(Candidate(method, step, scores, lost, loss))

    for method, scores in known.items():
        look(method, 0, scores)
    look("attribution", 0, attribute(learning, count))
    # a step of either training costs as much as two forecasts
    if count <= 4 * steps:
        look("single effects", 0, measure_single(learning, count))
    start = trained.best.scores
    start = start / start.abs().max().clamp_min(torch.finfo(start.dtype).tiny)
    trainings = {"pooled loss": learning.mean, "loss of each series": learning.even}
    for number, (method, loss) in enumerate(trainings.items()):
        rng = np.random.default_rng(seed)
        for step, scores in _train(start, loss, steps, rng):
            if step % max(1, steps // _CHECKS) == 0 or step == steps:
                look(method, step, scores)
            if progress is not None:
                progress(number * steps + step, len(trainings) * steps)
    return trained


def attribute(loss: MaskLoss, count: int) -> Tensor:
    """Return what the loss falls by in the direction of each unit, (unit,).

    It is the mean of -∂L/∂m over constant masks from 0 to 1; over all units it sums to
    1, what the loss falls by along the way, but for the error of the midpoint rule.
    """
    total = torch.zeros(count, device=loss.run.lens.device)
    for number in range(_CONSTANTS):
        level = (number + 0.5) / _CONSTANTS
        mask = torch.full_like(total, level, requires_grad=True)
        total -= _gradient(loss.mean, mask)
    return total / _CONSTANTS


def measure_single(loss: MaskLoss, count: int) -> Tensor:
    """Return the loss without each unit alone, (unit,)."""
    ones = torch.ones(count, device=loss.run.lens.device)
    with torch.no_grad():
        return torch.stack(
            [
                loss.mean(ones.index_fill(0, at, 0))
                for at in torch.arange(count, device=ones.device)
            ]
        )


def _train(
    start: Tensor,
    loss: Callable[[Tensor], Tensor],
    steps: int,
    rng: np.random.Generator,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of each step, and the scores after it."""
    scores = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([scores], lr=RATE)
    for step in range(1, steps + 1):
        budget = int(rng.integers(1, len(scores)))
        scores.grad = _gradient(partial(_loss_at, loss, budget), scores)
        optimizer.step()
        yield step, scores.detach().clone()


def _loss_at(loss: Callable[[Tensor], Tensor], budget: float, scores: Tensor) -> Tensor:
    return loss(soft_top_k(scores, budget))


def _gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the gradient of a function, while weights accumulate nothing."""
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(function(at), [at])
    if not gradient.isfinite().all():
        raise InputError(
            "the loss has no finite gradient; take series of one length, or fewer"
        )
    return gradient


def list_sizes(count: int) -> list[int]:
    """Return the numbers of units that are kept: all, or a geometric grid of many."""
    if count <= _MOST_SIZES:
        return list(range(count + 1))
    grid = np.geomspace(1, count, _GRID).round().astype(int)
    return [0, *map(int, np.unique(grid))]


def measure_sizes(loss: MaskLoss, scores: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the loss of the best units of each size, (size, series)."""
    with torch.no_grad():
        return torch.stack([loss.by_series(mask) for mask in hard_masks(scores, sizes)])


def hard_masks(scores: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return masks of ones at the best units, for each number of them."""
    ranks = scores.argsort(descending=True, stable=True).argsort()
    return [(ranks < size).to(scores) for size in sizes]


def divide(run: Run, parts: int, seed: int) -> list[tuple[Run, list[int]]]:
    """Divide the series of a run at random; the first part has the most.

    Returns:
        The run of each part, and its rows.
    """
    check_gradients(run.lens.wiring)
    run = run.in_one_pass()
    batch = run.batch
    if run.lens.adapter.multivariate and batch.multivariate:
        raise InputError(
            "series of one group see each other, so that none can be held out; give"
            " columns as targets=…, series of their own, rather than as variates=…,"
            " known=… or past=…"
        )
    if len(batch) < parts:
        raise InputError(
            f"the run has {len(batch)} series, expected {parts} or more, of which some"
            " are held out; windows=… makes several of one"
        )
    order = np.random.default_rng(seed).permutation(len(batch))
    divided = [sorted(map(int, rows)) for rows in np.array_split(order, parts)]
    return [(run.select(rows), rows) for rows in divided]


@dataclass(frozen=True)
class _Place:
    """Units at one hook point, and their entries along its heads or hidden units.

    Entries are None where the whole activation is one unit.
    """

    point: str
    units: list[int]
    entries: list[int] | None = None
    length: int = 1

    def spread(self, mask: Tensor) -> Tensor:
        """Return the part of a mask (unit,) that multiplies the activation."""
        chosen = mask[self.units]
        if self.entries is None:
            return chosen
        # entries that are no units are kept as they are
        kept = mask.new_ones(self.length)
        kept = kept.index_copy(
            0, torch.tensor(self.entries, device=mask.device), chosen
        )
        if self.point.endswith("hook_z"):
            return kept[:, None]
        return kept


def _list_places(run: Run, sites: Sequence[PatchSite], units: str) -> list[_Place]:
    """Return the hook points of all units, numbered in the order of the sites."""
    if units == "neurons":
        return _list_neurons(run, sites)
    numbers: dict[str, list[int]] = {}
    for number, site in enumerate(sites):
        numbers.setdefault(site.point, []).append(number)
    places = []
    for point, members in numbers.items():
        entries = [sites[number].head for number in members]
        heads = [head for head in entries if head is not None]
        n_heads = run.lens.wiring.stack(sites[members[0]].stack).n_heads
        places.append(_Place(point, members, heads or None, n_heads))
    return places


def _list_neurons(run: Run, sites: Sequence[PatchSite]) -> list[_Place]:
    """Return the hidden layers of MLPs, with all of their units."""
    points = [site.point.replace("hook_out", "hook_post") for site in sites]
    found = [
        (site, point)
        for site, point in zip(sites, points, strict=True)
        if point in run.lens.registry.points
        and "d_mlp" in run.lens.registry.points[point].axes
    ]
    if not found:
        raise InputError(
            "none of the nodes is an MLP with a hidden layer, expected some for"
            " units='neurons', such as nodes=['*.*.mlp']"
        )
    recorded = run.in_one_pass().record([point for _, point in found])
    places = []
    first = 0
    for _, point in found:
        width = recorded[point].shape[-1]
        units = list(range(first, first + width))
        places.append(_Place(point, units, list(range(width)), width))
        first += width
    return places


@dataclass(frozen=True, eq=False)
class _Softened:
    """Intervention that mixes an activation with what another one replaces it by.

    Attributes:
        target: hook point.
        base: intervention of the same target, whose values stand for a mask of 0.
        kept: what multiplies the activation, of a shape that broadcasts to it.
    """

    target: str
    base: Intervention
    kept: Tensor
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Callable[[Tensor, RunState], Tensor]:
        """Return the function of an activation that mixes it."""
        replaced = self.base.change(point)

        def mix(value: Tensor, state: RunState) -> Tensor:
            # lerp is exact at both ends
            return torch.lerp(replaced(value, state), value, self.kept.to(value))

        return mix


def _list_bases(
    run: Run,
    corrupted: Run | None,
    how: str,
    points: Sequence[str],
    rows: Sequence[int],
) -> list[Intervention]:
    """Return interventions whose values stand for a mask of 0, by hook point."""
    if corrupted is not None:
        source = corrupted.select(rows).record(points)
        return [PatchFrom(point, source) for point in points]
    if how == "mean":
        source = run.record(points)
        return [Mean(point, source) for point in points]
    return [Zero(point) for point in points]


def _edge_loss(
    run: Run,
    corrupted: Run | None,
    how: str,
    sites: Sequence[PatchSite],
    rows: Sequence[int],
) -> MaskLoss:
    """Return the loss of a run whose edges are masked."""
    points = list(dict.fromkeys(site.point for site in sites))
    bases = _list_bases(run, corrupted, how, points, rows)
    masks = EdgeMasks(run, sites, dict(zip(points, bases, strict=True)))
    return MaskLoss(run, masks.forecast, len(masks.edges))


def _activation_loss(
    run: Run,
    corrupted: Run | None,
    how: str,
    places: Sequence[_Place],
    rows: Sequence[int],
) -> MaskLoss:
    """Return the loss of a run whose activations are masked."""
    points = [place.point for place in places]
    bases = _list_bases(run, corrupted, how, points, rows)
    count = sum(len(place.units) for place in places)
    forecast = partial(_forecast_masked, run, places, bases)
    return MaskLoss(run, forecast, count)


def _forecast_masked(
    run: Run, places: Sequence[_Place], bases: Sequence[Intervention], mask: Tensor
) -> Tensor:
    """Forecast with each activation mixed with its base, (series, step)."""
    softened = [
        _Softened(place.point, base, place.spread(mask))
        for place, base in zip(places, bases, strict=True)
    ]
    with run.lens.edit(*softened):
        return run.read(run.lens.forward(run.encoded), run.encoded)


def _neuron_coords(
    sites: Sequence[PatchSite], places: Sequence[_Place]
) -> dict[str, Any]:
    """Return coordinates that name hidden units by their MLP and number."""
    by_point = {site.point.replace("hook_out", "hook_post"): site for site in sites}
    owners = [by_point[place.point] for place in places for _ in place.units]
    numbers = [number for place in places for number in range(len(place.units))]
    names = [
        f"{site.target}.{number}" for site, number in zip(owners, numbers, strict=True)
    ]
    return {
        "neuron": names,
        "stack": ("neuron", [site.stack for site in owners]),
        "layer": ("neuron", [site.layer for site in owners]),
        "unit": ("neuron", numbers),
    }
