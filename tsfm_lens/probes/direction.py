"""A direction of the residual stream that carries a label, changed and compared.

:func:`direction` is the probe. It finds the direction on one half of the series and
changes it on the other: exchanged between two runs, erased, and given in doses. Each
change stands beside draws of :mod:`tsfm_lens.core.nulls`. Two runs are made of one by
:func:`pair_by_label`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates, digest_series
from tsfm_lens.core.nulls import (
    DRAWS,
    centre,
    check_draws,
    covariance,
    draw_directions,
    match_norms,
    with_nulls,
)
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import LEVEL, SMALLEST, holm, ratio, sign_test
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.models.adapter import check_gradients
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.noise import keep_above_rounding, share_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.given import called, check_option
from tsfm_lens.probes.patching import RunPair, contrast
from tsfm_lens.probes.sites import first_stack, parse_sites, put_value

__all__ = ["direction"]

METHODS = ("means", "lda", "das")
DOSES = (-3.0, -2.0, -1.0, 1.0, 2.0, 3.0)
CHANGES = ("interchange", "erasure")
WITHIN = 0.99
"""Share of the real activations within the distance at which a dose leaves them."""
_STEPS = 100  # of the search for a subspace
_RATE = 0.05  # of Adam, for a basis of unit vectors


@probe(
    "pair",
    title="Direction",
    theme="Causes",
    summary="one direction of the stream: exchanged, erased and dosed, beside draws",
    description=(
        "Two runs differ in one property. The direction of the residual stream that "
        "separates them is exchanged between the runs, erased, and added in doses. "
        "Random directions of the same activations, with changes of the same norm, "
        "show what any change of this size does."
    ),
    source="Geiger et al. 2023, arXiv:2303.02536; Marks and Tegmark 2023",
    example={"doses": [-1.0, 1.0], "nulls": 2},
)
def direction(
    clean: Run,
    corrupted: Run | None = None,
    *,
    labels: Sequence[bool] | np.ndarray | None = None,
    content: Mapping[str, Sequence[float]] | None = None,
    point: str | None = None,
    tokens: int | Sequence[int] | None = None,
    method: str = "means",
    rank: int = 1,
    counterfactual: np.ndarray | None = None,
    doses: Sequence[float] = DOSES,
    nulls: int = DRAWS,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Find a direction that separates two runs, change it, and compare with draws.

    The direction is found on one half of the series and tested on the other, and the
    reverse, so that every series is tested with a direction that has not seen it. Equal
    series, and windows of one item, are in one half. With a single series it is found
    and tested on the same one (attribute ``held_out``).

    Args:
        clean: the run that has the property, or with ``labels`` the only run.
        corrupted: a run of the same series without the property, of equal ids, starts,
            lengths and options.
        labels: in place of ``corrupted``, which series of the run have the property.
            Each is paired with one that has not, of like level and spread.
        content: further properties by name, a number a series, in which the pairs of
            ``labels`` must be alike.
        point: hook point of a residual stream; the last of the first stack if None.
        tokens: position or positions that are read and changed, from the end if below
            0; all if None.
        method: "means", the difference of the means, which says what is written; "lda",
            the discriminant of the same means, which says what can be read; "das", the
            subspace whose exchange brings the forecast nearest to the counterfactual.
        rank: dimensions of the subspace, above 1 with "das" alone.
        counterfactual: what the corrupted run should forecast with the property of the
            clean one, (series, step) in data units; the clean run's forecast if None.
        doses: multiples of the direction's standard deviation that are added to the
            corrupted run, below and above 0. Positive ones lead to the clean run.
        nulls: draws from the covariance of activations of equal label, at right angles
            to the direction. Their changes have, token by token, the norm of the tested
            change, and its sense: towards the other run.
        progress: called with (done, of).

    Returns:
        Dataset of kind "direction":

        - ``agreement`` (change, series): 1 less the squared distance from the forecast
          that the change should give, over that without change. "interchange" gives the
          corrupted run the clean run's part along the direction, and should give the
          counterfactual; "erasure" puts that part of the clean run at its mean over
          both runs, and should give the corrupted run's forecast. It is at most 1, and
          below 0 where the change leads away.
        - ``dose_recovered`` (dose, series), ``dose_nulls`` (null, dose): share of the
          way at each dose, of the draws in the median over series.
        - ``slope`` (series): share per standard deviation, between the smallest doses.
        - ``dose_low``, ``dose_high`` (series): doses at which the activation leaves the
          99 % of real ones by Mahalanobis distance, median over tokens.
        - ``along`` (series): share of the squared difference of both runs that lies
          along the direction. Where it is small, the runs differ in more.
        - ``vector`` (direction, channel): orthonormal, found on all series.
        - ``content_gap`` (content): by how much the clean series exceed the corrupted
          ones in level, spread and ``content``, in standard deviations, median over
          pairs. Significant gaps are refused; few pairs cannot show any.
        - ``half_cosine`` (direction): cosines of the angles between the subspaces of
          both halves; NaN without halves.
        - ``clean_forecast``, ``corrupted_forecast``, ``counterfactual`` (series, step):
          in data units.

        ``agreement`` comes with what :func:`.estimates.add_estimates` and
        :func:`.nulls.with_nulls` add.

    Source:
        Geiger et al. 2023 (DAS); Marks and Tegmark 2023 (difference of means); Makelov
        et al. 2023 on directions that lie dormant.

    Raises:
        InputError: the runs or labels differ in level, spread or ``content``, the
            forecasts are the same, or an option has no meaning.
        UnknownNameError: no such hook point.

    Example:
        >>> data = probes.direction(run, corrupted, nulls=2)
        >>> data["agreement"].dims, dict(data["agreement_nulls"].sizes)
        (('change', 'series'), {'null': 2, 'change': 2})
    """
    check_draws(nulls)
    check_option("method", method, METHODS)
    given_doses = _check_doses(doses)
    if isinstance(tokens, int | np.integer):
        tokens = [int(tokens)]
    if (corrupted is None) == (labels is None):
        raise InputError("give corrupted, a second run, or labels, a bool a series")
    others: dict[str, np.ndarray] = {}
    if content is not None and not isinstance(content, Mapping):
        raise InputError(
            f"content is {called(content)}, expected numbers by name, such as"
            " {'season': [12, 24]}"
        )
    if corrupted is None:
        clean, corrupted, others = pair_by_label(clean, labels, content)
    elif content is not None:
        raise InputError(
            "content goes with labels; of two runs, level and spread count"
        )
    gaps = check_content(clean, corrupted, others)
    if clean.batch.multivariate:
        raise InputError("a direction is of single series; variates share their tokens")
    subject = _subject(clean.in_one_pass(), corrupted.in_one_pass(), point, tokens)
    _check_rank(method, rank, subject.base.shape[-1])
    pair = subject.pair
    if counterfactual is None:
        target = pair.source.point
    else:
        target = _check_counterfactual(counterfactual, pair.base)
    halves = _halves(subject)
    bases = [_find(subject, rows, method, rank, target) for rows in [*halves, ...]]
    whole = bases.pop()
    # (series, rank, width): each series has the basis of the other half
    held_out = np.empty((len(pair.base.batch), *whole.shape))
    held_out[:] = whole
    for rows, basis in zip(halves, reversed(bases), strict=True):
        held_out[rows] = basis
    draws = draw_directions(subject.centred, nulls, rank, pair.base.seed)
    tested = [held_out, *(_beside(held_out, draw) for draw in draws)]
    # (change, null, series, token, width); the tested direction is the first null
    swaps, erasures = (
        np.array([_project(difference, basis) for basis in tested])
        for difference in (subject.difference, subject.to_centre)
    )
    added = np.array([subject.steps(basis) for basis in tested])
    swaps, erasures, added = (
        match_norms(changes, changes[:1]) for changes in (swaps, erasures, added)
    )
    dosed = [dose * change for dose in given_doses for change in added]
    variants = [subject.variant(pair.base, change) for change in [*swaps, *dosed]]
    moved = point_forecasts(pair.base, variants, progress)
    erased = point_forecasts(
        pair.source, [subject.variant(pair.source, change) for change in erasures]
    )
    start = pair.base.point
    exchanged = moved[: len(swaps)]
    by_dose = moved[len(swaps) :].reshape(len(given_doses), len(swaps), *start.shape)
    way = target - start
    back = start - pair.source.point
    agreements = xr.DataArray(
        [
            _agree(exchanged, start, target),
            _agree(erased, pair.source.point, start),
        ],
        dims=("change", "null", "series"),
    )
    dose_shares = _share(by_dose - start, way)
    low = max(at for at, dose in enumerate(given_doses) if dose < 0)
    high = min(at for at, dose in enumerate(given_doses) if dose > 0)
    width = given_doses[high] - given_doses[low]
    data = pair.dataset().assign_coords(change=list(CHANGES), dose=given_doses)
    data = data.assign_coords(content=list(gaps)).assign(
        content_gap=("content", list(gaps.values())),
        agreement=agreements.isel(null=0).variable,
        dose_recovered=(("dose", "series"), dose_shares[:, 0]),
        dose_nulls=(("null", "dose"), _medians(dose_shares[:, 1:]).T),
        slope=("series", (dose_shares[high, 0] - dose_shares[low, 0]) / width),
        along=("series", _along(subject.difference, swaps[0])),
        vector=(("direction", "channel"), whole),
        half_cosine=("direction", _cosines(bases, rank)),
        counterfactual=(("series", "step"), target),
    )
    for name, bounds in zip(
        ("dose_low", "dose_high"), subject.limits(added[0]), strict=True
    ):
        data[name] = ("series", bounds)
    data.attrs |= {
        "method": method,
        "point": subject.point,
        "tokens": "all" if tokens is None else ", ".join(map(str, tokens)),
        "held_out": int(len(halves) > 0),
        "draws": nulls,
        "given": int(counterfactual is not None),
    }
    floors = [share_floor(pair.base, way), share_floor(pair.source, back)]
    floor = xr.DataArray(np.array(floors), dims=("change", "series"))
    # the two changes are no rivals
    data = add_estimates(data, "agreement", floor=floor, groups=CHANGES)
    drawn = agreements.isel(null=slice(1, None))
    return with_nulls(data, "agreement", drawn, floor=floor)


@dataclass(frozen=True)
class _Subject:
    """Activations of two runs at some tokens of a stream, (series, token, width)."""

    pair: RunPair
    point: str
    stack: str
    at: tuple[int, ...]

    @cached_property
    def base(self) -> np.ndarray:
        """Of the run that is changed."""
        return self._read(self.pair.base_acts)

    @cached_property
    def source(self) -> np.ndarray:
        """Of the run that has the property."""
        return self._read(self.pair.source_acts)

    def _read(self, activations: Activations) -> np.ndarray:
        values = activations[self.point][:, list(self.at)]
        return np.asarray(values.detach().cpu().double().numpy())

    @cached_property
    def shown(self) -> np.ndarray:
        """True for tokens that are not padding, (series, token)."""
        shown = self.pair.base.encoded.shown(self.stack)[:, list(self.at)]
        return np.asarray(shown.cpu().numpy())

    @cached_property
    def difference(self) -> np.ndarray:
        """Source less base, 0 at padding."""
        return np.asarray((self.source - self.base) * self.shown[..., None])

    @cached_property
    def distinct(self) -> np.ndarray:
        """True for series that count, the first of those that are equal."""
        first = np.unique(digest_series(self.pair.dataset()), return_index=True)[1]
        return np.isin(np.arange(len(self.base)), first)

    @cached_property
    def centre(self) -> np.ndarray:
        """Mean activation over both runs, (width,)."""
        return np.asarray(self._rows(...).mean(axis=(0, 1)))

    def _rows(self, rows: Any) -> np.ndarray:
        """Activations of some series, (run, token, width), without padding."""
        counted = (self.shown & self.distinct[:, None])[rows]
        return np.array([acts[rows][counted] for acts in (self.base, self.source)])

    @cached_property
    def to_centre(self) -> np.ndarray:
        """The mean over both runs less source, 0 at padding."""
        return np.asarray((self.centre - self.source) * self.shown[..., None])

    @cached_property
    def centred(self) -> np.ndarray:
        """Activations less the mean of their run, (row, width)."""
        return self.within(...)

    def within(self, rows: Any) -> np.ndarray:
        """Activations of some series, less the mean of their run, (row, width)."""
        acts = self._rows(rows)
        return np.concatenate([centre(run_acts) for run_acts in acts])

    def mean_difference(self, rows: Any) -> np.ndarray:
        """Mean of the source less that of the base, (width,)."""
        base, source = self._rows(rows).mean(axis=1)
        return np.asarray(source - base)

    def steps(self, basis: np.ndarray) -> np.ndarray:
        """Return a dose of 1 along each series' basis, (series, token, width).

        It is a standard deviation over both runs, towards the source.
        """
        towards = _project(self.mean_difference(...)[None, None], basis)
        length = np.linalg.norm(towards, axis=-1, keepdims=True)
        unit = towards / np.where(length, length, 1.0)
        acts = self._rows(...).reshape(-1, unit.shape[-1])
        scale = (acts @ unit[:, 0].T).std(axis=0)
        return np.asarray(unit * scale[:, None, None] * self.shown[..., None])

    def limits(self, step: np.ndarray) -> np.ndarray:
        """Return the doses at which tokens leave the real activations, (2, series).

        ``step`` (series, token, width) is a dose of 1. A token that lies outside stays
        there at a dose of 0.
        """
        acts = self._rows(...).reshape(-1, step.shape[-1])
        precision = np.linalg.pinv(covariance(acts - self.centre))

        def product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.asarray(np.einsum("...i,ij,...j", one, precision, other))

        real = acts - self.centre
        largest = np.quantile(product(real, real), WITHIN)
        token = self.base - self.centre
        square, mixed = product(step, step), product(step, token)
        inside = np.minimum(product(token, token) - largest, 0.0)
        root = np.sqrt(np.square(mixed) - square * inside)
        # padding has no step
        ends = [ratio(sign * root - mixed, square) for sign in (-1, 1)]
        ends = [np.where(inside < 0, end, 0.0) for end in ends]
        return np.array([np.nanmedian(end, axis=1) for end in ends])

    def variant(self, run: Run, change: np.ndarray) -> Variant:
        """Return the model with a change (series, token, width) added at the tokens."""
        recorded = self.pair.base_acts
        if run is self.pair.source:
            recorded = self.pair.source_acts
        altered = recorded[self.point].clone()
        altered[:, list(self.at)] += torch.as_tensor(change).to(altered)
        return Variant(self.point, (put_value(run, self.point, self.point, altered),))


def _subject(
    clean: Run, corrupted: Run, point: str | None, tokens: Sequence[int] | None
) -> _Subject:
    """Record both runs at a stream."""
    lens = clean.lens
    stack = first_stack(lens, None)
    last = f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"
    if point is None:
        point = last
    if not isinstance(point, str):
        raise InputError(f"point is {point!r}, expected a name such as {last!r}")
    sites = parse_sites(lens, [point])
    if len(sites) != 1:
        raise InputError(f"point {point!r} names {len(sites)} streams, expected one")
    if sites[0].head is not None:
        raise InputError(
            f"point {point!r} is a head, which has a space of its own; expected a"
            f" stream such as {last!r}, or a whole branch"
        )
    name = sites[0].point
    pair = contrast(clean, corrupted, sites, base_names=[name])
    count = pair.base_acts[name].shape[1]
    if tokens is None:
        tokens = range(count)
    wrong = [token for token in tokens if not _is_position(token, count)]
    if wrong or not len(tokens):
        raise InputError(
            f"tokens has {wrong or 'no position'}, expected positions from {-count} to"
            f" {count - 1} of {sites[0].stack or 'the stack'}"
        )
    at = tuple(dict.fromkeys(int(token) % count for token in tokens))
    subject = _Subject(pair, name, sites[0].stack, at)
    without = ~subject.shown.any(axis=1)
    if without.any():
        short = clean.batch.ids[int(np.argmax(without))]
        raise InputError(
            f"tokens {list(tokens)} are padding in series {short!r}, which is shorter"
            " than others; take other tokens, or series of one length"
        )
    return subject


def _is_position(token: Any, count: int) -> bool:
    """Return whether a value is a position among ``count`` tokens."""
    # True is an int
    is_whole = isinstance(token, int | np.integer) and not isinstance(token, bool)
    return is_whole and -count <= token < count


def _halves(subject: _Subject) -> list[np.ndarray]:
    """Return the rows of two halves of the series; none for a single series.

    They take turns by skewness, so that neither the order of the series nor their units
    matter.
    """
    # scipy.stats takes half a second to import
    from scipy.stats import skew

    data = subject.pair.dataset()
    if "item" in data.coords and len(np.unique(data["item"])) > 1:
        labels = data["item"].values
    else:
        labels = digest_series(data)
    values = subject.pair.clean.batch.values
    with warnings.catch_warnings():
        # a flat series has no skewness, and comes last
        warnings.simplefilter("ignore", RuntimeWarning)
        skewness = [float(skew(series, nan_policy="omit")) for series in values]
    by_shape = np.argsort(skewness, kind="stable")
    ordered = list(dict.fromkeys(labels[by_shape].tolist()))
    if len(ordered) < 2:
        return []
    place = np.array([ordered.index(label) for label in labels.tolist()])
    return [np.flatnonzero(place % 2 == half) for half in (0, 1)]


def _project(changes: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return the part of changes (series, token, width) within each series' basis.

    The basis is (series, rank, width).
    """
    return np.asarray(changes @ basis.swapaxes(-1, -2) @ basis)


def _beside(basis: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """Return draws (rank, width) at right angles to each series' basis.

    Their own part within the basis would do what the direction does.
    """
    draws = np.broadcast_to(draw, basis.shape)
    rest = draws - _project(draws, basis)
    return np.asarray(np.linalg.qr(rest.swapaxes(-1, -2))[0].swapaxes(-1, -2))


def _agree(moved: np.ndarray, start: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Return the agreement of forecasts with a goal, (…, series).

    It is 0 for the forecast ``start`` and 1 for the goal.
    """
    distances = (np.square(values - goal).sum(-1) for values in (moved, start))
    return 1 - ratio(*distances)


def _share(moved: np.ndarray, way: np.ndarray) -> np.ndarray:
    """Return the share of a way (series, step) that forecasts moved, (…, series)."""
    return ratio((moved * way).sum(-1), np.square(way).sum(-1))


def _medians(values: np.ndarray) -> np.ndarray:
    """Return medians over the last axis, without series that have no way."""
    known = np.isfinite(values).all(axis=tuple(range(values.ndim - 1)))
    return np.asarray(np.median(values[..., known], axis=-1))


def _along(difference: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return the share of squared differences that a part of them has, (series,)."""
    squares = [np.square(values).sum(axis=(1, 2)) for values in (part, difference)]
    return ratio(*squares)


def _cosines(bases: Sequence[np.ndarray], rank: int) -> np.ndarray:
    """Return the cosines between the subspaces of both halves, (rank,)."""
    if not bases:
        return np.full(rank, np.nan)
    one, other = bases
    return np.asarray(np.linalg.svd(one @ other.T, compute_uv=False))


def _find(
    subject: _Subject, rows: Any, method: str, rank: int, target: np.ndarray
) -> np.ndarray:
    """Return the orthonormal basis (rank, width) that a method finds on some series."""
    mean = subject.mean_difference(rows)
    within = covariance(subject.within(rows))
    discriminant = np.linalg.pinv(within) @ mean
    # groups without variation, as one series has, have no discriminant but the means
    if not within.any():
        discriminant = mean
    if method == "means":
        return _orthonormal([mean], 1)
    if method == "lda":
        return _orthonormal([discriminant], 1)
    counted = subject.distinct[rows]
    difference = subject.difference[rows][counted].reshape(-1, len(mean))
    principal = np.linalg.svd(difference, full_matrices=False)[2]
    starts = [
        _orthonormal([first, *principal], rank)
        for first in (mean, discriminant, *principal[:rank])
    ]
    return _search(subject, rows, starts, target)


def _orthonormal(vectors: Sequence[np.ndarray], rank: int) -> np.ndarray:
    """Return an orthonormal basis (rank, width) of the first vectors, in order."""
    chosen = list[np.ndarray]()
    for vector in vectors:
        rest = vector - sum((vector @ one) * one for one in chosen)
        length = np.linalg.norm(rest)
        # what the others span already is left as rounding
        if length > np.sqrt(np.finfo(float).eps) * np.linalg.norm(vector):
            chosen.append(rest / length)
        if len(chosen) == rank:
            return np.array(chosen)
    raise InputError(
        f"the runs differ in {len(chosen)} directions at this point, fewer than the"
        f" rank {rank}; choose another point or tokens, or a lower rank"
    )


def _search(
    subject: _Subject, rows: Any, starts: Sequence[np.ndarray], target: np.ndarray
) -> np.ndarray:
    """Return the basis whose exchange brings the forecast nearest to the target.

    The best start is improved by gradients. Where the forecast is a step of the
    activations there are none, and the best start stays.
    """
    run = subject.pair.base
    lens = run.lens
    check_gradients(lens.wiring)
    change = torch.as_tensor(subject.difference)
    way = np.square(target - run.point).sum(-1)
    chosen = np.zeros(len(way), dtype=bool)
    chosen[rows] = subject.distinct[rows]
    weight = torch.as_tensor(np.where(chosen, ratio(1.0, way, 0.0), 0.0))
    goal = torch.as_tensor(target)

    def distance(basis: Tensor) -> Tensor:
        """Mean squared distance from the target, as a share of that without change."""

        def exchange(value: Tensor, hook: HookPoint) -> Tensor:
            part = change @ basis.T @ basis
            shift = torch.zeros_like(value)
            shift[:, list(subject.at)] = part.to(value)
            return value + shift

        with lens.hooks([(subject.point, exchange)]):
            forecast = run.read(lens.forward(run.encoded))
        squares = (forecast.double() - goal.to(forecast.device)).square().sum(-1)
        result: Tensor = (squares * weight.to(squares)).sum() / chosen.sum()
        return result

    with torch.no_grad():
        bases = [torch.as_tensor(start) for start in starts]
        losses = [float(distance(basis)) for basis in bases]
    lowest = min(losses)
    best = bases[losses.index(lowest)]
    raw = best.clone().requires_grad_()
    optimizer = torch.optim.Adam([raw], lr=_RATE)
    for _ in range(_STEPS):
        with torch.enable_grad():
            basis = torch.linalg.qr(raw.T)[0].T
            loss = distance(basis)
            (raw.grad,) = torch.autograd.grad(loss, [raw])
        if loss.item() < lowest:
            lowest, best = loss.item(), basis.detach()
        # a step has no gradient, and what is left may be too small to matter
        if not raw.grad.any() or lowest <= SMALLEST**2:
            break
        optimizer.step()
    return np.asarray(best)


def pair_by_label(
    run: Run, labels: Any, content: Mapping[str, Sequence[float]] | None = None
) -> tuple[Run, Run, dict[str, np.ndarray]]:
    """Pair each series that has a label with one that has not, of like content.

    Content is the level and the spread of a series, and what the caller names. Each
    series is in one pair at most, and the sum of squared distances is the least.

    Args:
        run: of all series.
        labels: true for series with the label, (series,).
        content: numbers (series,) by name.

    Returns:
        The runs with and without the label, with the ids of the first; and the
        differences of the content (pair,) by name, in standard deviations.

    Raises:
        InputError: labels are not of two groups, or content is not a number a series.
    """
    groups = np.asarray(labels)
    count = len(run.batch)
    if groups.shape != (count,) or not np.isin(groups, (0, 1)).all():
        raise InputError(f"labels is {labels!r}, expected {count} of True and False")
    sides = [np.flatnonzero(groups == value) for value in (1, 0)]
    if not all(map(len, sides)):
        raise InputError(
            "all labels are the same, and a direction separates two groups"
        )
    if len(set(run.batch.lengths)) > 1:
        raise InputError(
            f"the series have lengths {run.batch.lengths}, and pairs by labels are of"
            " one length, so that their tokens stand at the same positions; cut all"
            f" series to their last {min(run.batch.lengths)} steps"
        )
    level, spread = _level_and_spread(run)
    columns = {"level": level, "spread": spread}
    for name, values in (content or {}).items():
        numbers = _numbers(values)
        if numbers.shape != (count,) or not np.isfinite(numbers).all():
            raise InputError(f"content {name!r} is no finite number for each series")
        columns[name] = numbers
    table = np.array(list(columns.values())).T
    deviation = table.std(axis=0)
    table = table / np.where(deviation, deviation, 1.0)
    having, lacking = (table[rows] for rows in sides)
    first, second = linear_sum_assignment(cdist(having, lacking, "sqeuclidean"))
    with_label = run.select(sides[0][first].tolist())
    without = run.select(sides[1][second].tolist())
    # the same ids and times, as a pair has
    batch = replace(with_label.batch, values=without.batch.values)
    corrupted = replace(without, batch=batch, full_batch=None, _of=None)
    gaps = having[first] - lacking[second]
    others = dict(zip(list(columns)[2:], gaps.T[2:], strict=True))
    return with_label, corrupted, others


def _level_and_spread(run: Run) -> np.ndarray:
    """Return mean and standard deviation of each context, (2, series)."""
    return np.array(
        [[np.nanmean(values), np.nanstd(values)] for values in run.batch.values]
    ).T


def check_content(
    clean: Run, corrupted: Run, others: Mapping[str, np.ndarray] | None = None
) -> dict[str, float]:
    """Refuse pairs that differ systematically in more than the property.

    Args:
        clean: run with the property.
        corrupted: run without it.
        others: further differences of the pairs by name, without units.

    Returns:
        The median of the differences of the pairs, by name.

    Raises:
        InputError: level, spread or another difference has the same sign, and a size of
            interest, on significantly many pairs.
    """
    if len(clean.batch) != len(corrupted.batch):
        # contrast() says what is wrong with such runs
        return {}
    (level, spread), (other_level, other_spread) = map(
        _level_and_spread, (clean, corrupted)
    )
    widest = np.fmax(spread, other_spread)
    gaps = {
        "level": ratio(level - other_level, widest, 0.0),
        "spread": ratio(spread - other_spread, widest, 0.0),
        **(others or {}),
    }
    p = holm(np.array([sign_test(values, SMALLEST) for values in gaps.values()]))
    for (name, values), adjusted in zip(gaps.items(), p, strict=True):
        if adjusted <= LEVEL:
            raise InputError(
                f"the two groups differ in {name}, by {np.median(values):.2g} standard"
                f" deviations in the median over {len(values)} pairs, so a direction"
                f" between them may be that of {name}; choose series that are alike in"
                " it"
            )
    return {name: float(np.median(values)) for name, values in gaps.items()}


def _check_doses(doses: Any) -> list[float]:
    """Return doses in order; without one on either side of 0 there is no slope."""
    try:
        values = sorted({float(dose) for dose in doses})
    except (TypeError, ValueError):
        values = []
    if not (values and np.isfinite(values).all() and values[0] < 0 < values[-1]):
        raise InputError(f"doses is {doses!r}, expected numbers on both sides of 0")
    return values


def _check_rank(method: str, rank: Any, width: int) -> None:
    """Refuse a rank that a method does not have."""
    most = width if method == "das" else 1
    if not is_count(rank) or rank > most:
        raise InputError(
            f"rank is {rank!r}, expected 1 to {most} with method={method!r}; 'das'"
            " alone finds more than one direction"
        )


def _check_counterfactual(values: Any, base: Run) -> np.ndarray:
    """Return a counterfactual forecast of the right shape, other than the run's own."""
    target = _numbers(values)
    if target.shape != base.point.shape or not np.isfinite(target).all():
        raise InputError(
            f"counterfactual has shape {target.shape}, expected finite numbers"
            f" (series, step) = {base.point.shape}"
        )
    # in a twin both may well be the same
    reached = keep_above_rounding(base, target, base.point) == base.point
    if reached.all() and base.original is None:
        raise InputError(
            "counterfactual is what the corrupted run forecasts, so that there is"
            " nothing to reach; give the forecast that it should make with the property"
        )
    return target


def _numbers(values: Any) -> np.ndarray:
    """Return values as numbers; one that is no number, NaN, if they are not."""
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return np.array(np.nan)
