"""What must hold of every planted model, whatever its format: oracles that know its
card and its rule alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.hooks import Component
from tsfm_lens.models import Lens, Run
from tsfm_lens.testing import quick_check, rounding
from tsfm_lens.zoo.planted import (
    Attends,
    Card,
    CovariateTimes,
    LinearTrend,
    LocalMean,
    Planted,
    bolt,
    chronos,
    chronos2,
    draw_contexts,
    moirai2,
    open_planted,
)
from tsfm_lens.zoo.planted.chronos import BIN
from tsfm_lens.zoo.planted.chronos2 import draw_cases
from tsfm_lens.zoo.planted.patches import PATCH, SIGNAL
from tsfm_lens.zoo.planted.planting import SEPARATING

Array = np.ndarray[Any, np.dtype[np.float64]]
EFFECT = 20


@cache
def open_tiny(planted: Planted) -> Lens:
    """Its lens, checked once when it is made."""
    return planted.lens()


def tolerance(*series: Array) -> float:
    """Rounding of a stream whose coordinates are of the order of 1, on values that are
    `SIGNAL` of a deviation.
    """
    return rounding(
        "float32", max(float(np.std(one)) for one in series) / SIGNAL, depth=40
    )


SMALL = tolerance(np.array([-1.0, 1.0]))
"""Rounding, in deviations."""


def two_bins(*series: Array) -> float:
    """A forecast is a bin, and what goes into it lies in bins."""
    return 2 * BIN * max(float(np.abs(one).mean()) for one in series)


@dataclass(frozen=True)
class Format:
    """What differs between formats.

    Tokens of the longest context; what is done to values; the largest error of a series
    and of the card; and in errors, the least effect of a part that is needed, the
    largest of others and of a turn of the stream.
    """

    tokens: int = 0
    squash: Any = np.asarray
    scale: Callable[[Array], Any] = np.std
    bound: Callable[..., float] = tolerance
    error: float = SMALL
    effect: float = EFFECT
    rest: float = 1.0
    turn: float = 1.0


FORMATS = {
    chronos.NAME: Format(
        bound=two_bins, error=2 * BIN, effect=2.0, rest=0.5, turn=0.05
    ),
    bolt.NAME: Format(bolt.CONTEXT // PATCH + 1),
    chronos2.NAME: Format(
        chronos2.CONTEXT // PATCH + 1 + chronos2.AHEAD, squash=np.arcsinh
    ),
    moirai2.NAME: Format(moirai2.CONTEXT // PATCH + 1, scale=moirai2.deviation),
}


def find_format(card: Card) -> Format:
    return FORMATS[card.architecture]


def select_series(card: Card, count: int = 6, seed: int = 1) -> list[Any]:
    """White noise, noisy seasons and random walks, of lengths that the card allows and
    that fill no whole patch.

    Of a model of bins, and of one that tells methods apart, series of its rule's own
    kind; of a covariate, targets with it.
    """
    if isinstance(card.rule, CovariateTimes):
        cases = draw_cases(card.context, count, seed=7)
        cut = -card.horizon
        return [
            {
                "target": target[:cut],
                "past_covariates": {"known": known[:cut]},
                "future_covariates": {"known": known[cut:]},
            }
            for target, known in cases
        ]
    if card.mechanism in SEPARATING:
        return list(draw_contexts(card.rule, 8, card.context, seed=5))
    if card.architecture == chronos.NAME:
        return list(draw_contexts(card.rule, 4, card.context, seed=7, noise=0.05))
    rng = np.random.default_rng(seed)
    drawn = []
    for index in range(count):
        length = int(rng.integers(*card.context, endpoint=True))
        noise = rng.standard_normal(length)
        period = getattr(card.rule, "period", 8)
        season = np.resize(rng.standard_normal(period), length) + 0.05 * noise
        shape = (noise, season, np.cumsum(noise))[index % 3]
        drawn.append(
            (30.0 ** rng.uniform(-1, 1) * (shape + rng.uniform(-3, 3)))
            .astype(np.float32)
            .astype(float)
        )
    return drawn


def list_targets(card: Card, run: Run) -> Iterator[tuple[int, Array, float]]:
    """Rows that are forecast, with what the rule says and how far off they may be."""
    bound = find_format(card).bound
    for row, role in enumerate(run.batch.roles):
        series = np.asarray(run.batch.values[row])
        if isinstance(card.rule, CovariateTimes) and role == "target":
            known = np.asarray(run.batch.values[row + 1])
            future = run.batch.known_future(card.horizon)[row + 1]
            stated = card.rule.compute_forecast(series, known, future)
            yield row, stated, bound(series) * max(1.0, abs(card.rule.coefficient))
        elif role == "target":
            yield row, card.rule.forecast(series, card.horizon), bound(series)


def assert_follows_rule(planted: Planted) -> None:
    """The point forecast is the rule's closed form on random series, and the card's
    error is no larger.
    """
    card, of = planted.card, find_format(planted.card)
    run = open_tiny(planted).run(select_series(card), card.horizon)
    for forecasts in (run.point, run.path) if run.tokens_read else (run.point,):
        for row, stated, allowed in list_targets(card, run):
            off = np.abs(forecasts[row] - stated).max()
            assert off <= allowed, f"{card.name}: off by {off:.3g} of {allowed:.3g}"
    assert 0 < card.error <= of.error


def make_moves(card: Card) -> Iterator[tuple[Array, float, float]]:
    """A series short enough that every value can be moved, by how much, and how far off
    the forecast may be then.
    """
    if card.architecture == chronos.NAME:
        # what finds its place by values must still know a value that is moved; a mean
        # shares the move out
        bins, off = (
            (100, 0.8) if isinstance(card.rule, LocalMean | LinearTrend) else (20, 3.0)
        )
        # of a gate, the second series shows the other side
        for one in draw_contexts(
            card.rule,
            1 + (card.rule.kind == "gate"),
            (card.context[0] + 6,) * 2,
            seed=2,
        ):
            unit = BIN * float(np.abs(one).mean())
            yield one, bins * unit, off * unit
        return
    for one in select_series(card, count=2, seed=2):
        base = one[-max(card.context[0], 48) :]
        yield base, 0.5 * float(np.std(base)), 2 * tolerance(base)


def assert_inputs_matter_as_stated(planted: Planted) -> None:
    """Moving one value moves the forecast by the rule's weight of it, whatever the
    instance norm does.
    """
    card = planted.card
    for base, step, allowed in make_moves(card):
        point = (
            open_tiny(planted)
            .run([base, *(base + step * np.eye(len(base)))], card.horizon)
            .point
        )
        weights = card.rule.inputs(base, card.horizon)
        assert np.abs((point[1:] - point[0]).T - step * weights).max() <= allowed
        assert step * weights[weights > 0].min() > 2 * allowed, (
            "too small a move to be told from none"
        )
        assert (weights == 0).any(), (
            "a rule that uses every value would make this test empty"
        )


def list_parts(lens: Lens) -> list[str]:
    """Every head and MLP."""
    return [
        str(part)
        for part in lens.components()
        if part.head is not None or part.kind == "mlp"
    ]


def assert_parts_matter_as_stated(planted: Planted) -> None:
    """Without a mechanism's part the forecast is another one; without a decoy or a part
    off the card it is the same.
    """
    card, of = planted.card, find_format(planted.card)
    parts = list_parts(open_tiny(planted))
    assert set(parts) >= {part.component for part in card.parts}
    alone = measure_shifts(planted, *([part] for part in parts))
    # patch models have a backup for a share of the copy alone
    for part, effect in zip(parts, alone, strict=True):
        stands_in = card.architecture == chronos.NAME and part in {
            item.stands_in_for for item in card.parts
        }
        if part in card.components("mechanism") and not stands_in:
            assert effect > of.effect, f"{card.name} does without {part}: {effect:.3g}"
        else:
            assert effect <= of.rest, f"{card.name} needs {part}: {effect:.3g}"
    for part in card.parts:
        if part.stands_in_for:
            silent = [part.stands_in_for]
            one, both = measure_shifts(planted, silent, [*silent, part.component])
            assert both - one > of.effect, f"{card.name}: nothing takes over"


def measure_shifts(planted: Planted, *sets: Sequence[str]) -> list[float]:
    """Change of the forecast without each set of parts, in errors of the format."""
    card = planted.card
    run = open_tiny(planted).run(select_series(card, count=3), card.horizon)
    variants = [Variant.zero(*map(Component.parse, parts)) for parts in sets]
    changes = np.abs(point_forecasts(run, variants) - run.point).max(-1)
    rows, _, bounds = zip(*list_targets(card, run), strict=True)
    return (changes[:, rows] / bounds).max(-1).tolist()


def expected_keys(
    attention: Attends, n_queries: int, n_keys: int
) -> dict[int, list[int]]:
    """By query, the keys that a card says a head looks at."""
    crosses = Component.parse(attention.component).kind == "cross_attn"
    queries = {
        "every token": range(n_queries),
        "last token": [n_queries - 1],
        "last value": [n_queries - 2],
        "forecast token": range(n_queries),
        "first forecast token": [0],
    }[attention.query]
    starts = {
        query: n_keys - 1 + attention.moves * query if crosses else query
        for query in queries
    }
    keys = {
        query: [start - back for back in attention.back]
        for query, start in starts.items()
    }
    return {
        query: positions
        for query, positions in keys.items()
        if 0 <= min(positions) <= max(positions) < n_keys
    }


def assert_heads_look_where_stated(planted: Planted) -> None:
    """Every head on the card gives all keys that it names the same attention; on noise,
    where values do not matter.
    """
    card, of = planted.card, find_format(planted.card)
    series = [np.random.default_rng(0).standard_normal(card.context[1])]
    if not of.tokens:
        series = list(draw_contexts(card.rule, 1, card.context, seed=7))
    run = open_tiny(planted).run(series, card.horizon)
    for attention in card.attends:
        head = Component.parse(attention.component)
        name = (
            f"{head.stack}_blocks.{head.layer}.{head.kind}.hook_pattern".removeprefix(
                "_"
            )
        )
        pattern = (
            torch.as_tensor(run.record([name])[name])[0, head.head].double().numpy()
        )
        keys = expected_keys(attention, *pattern.shape)
        assert keys
        for query, positions in keys.items():
            shares = pattern[query, positions]
            if of.tokens:
                assert pattern.shape[1] == of.tokens
                close_in_float32(
                    shares, attention.weight / len(positions), depth=64, magnitude=1.0
                )
            else:
                assert shares.sum() > attention.weight - 1e-3, (
                    f"{attention}: query {query}"
                )
                assert shares.max() - shares.min() < 0.01 * shares.max(), (
                    f"{attention}: query {query}"
                )


def assert_saved_is_the_same(planted: Planted, folder: Path) -> None:
    """Opened by the native loader, the model makes the same forecast bit for bit, and
    its card says the same.
    """
    planted.save(folder)
    lens, card = open_planted(folder)
    assert card == planted.card
    series = select_series(card, count=3)
    opened, made = (
        one.forecast(series, card.horizon).quantiles
        for one in (lens, open_tiny(planted))
    )
    assert_array_equal(opened, made)
    assert all(result.passed for result in quick_check(lens))


def assert_same_in_any_basis(planted: Planted, plain: Planted) -> None:
    """Turned, the weights are others and the forecast, the parts and the rule are the
    same.
    """
    card = planted.card
    series = select_series(card)
    of = find_format(card)
    turned, plainly = (compute_forecast(item, series) for item in (planted, plain))
    run = open_tiny(planted).run(series, card.horizon)
    for row, _, allowed in list_targets(card, run):
        assert np.abs(turned[row] - plainly[row]).max() <= of.turn * allowed
    assert card.rotated
    assert (
        card.model_copy(update={"rotated": False, "error": plain.card.error})
        == plain.card
    )
    assert share_of_zeros(plain.model) > share_of_zeros(planted.model)
    if card.architecture == chronos.NAME:
        assert (
            share_of_zeros(planted.model.shared)
            < 0.01
            < 0.5
            < share_of_zeros(plain.model.shared)
        )


def compute_forecast(planted: Planted, series: Any) -> Array:
    """All quantiles of a model that draws none; the point forecast of one that does."""
    lens = open_tiny(planted)
    horizon = planted.card.horizon
    if planted.card.architecture == chronos.NAME:
        return lens.run(series, horizon).point
    return lens.forecast(series, horizon).quantiles


def share_of_zeros(model: torch.nn.Module) -> float:
    """Share of the entries of all matrices that are exactly 0."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    return sum(int((weight == 0).sum()) for weight in matrices) / sum(
        weight.numel() for weight in matrices
    )


def assert_quantiles_spread(planted: Planted, deviates: Array) -> None:
    """Levels lie as far from the median as stated, where the readout writes them."""
    card, of = planted.card, find_format(planted.card)
    series = select_series(card)
    quantiles = open_tiny(planted).forecast(series, card.horizon).quantiles
    for one, levels in zip(series, quantiles, strict=True):
        written = of.squash((levels - np.mean(one)) / of.scale(one))
        stated = np.repeat(deviates[:, None], card.horizon, 1)
        separate = written - written[len(deviates) // 2]
        close_in_float32(separate, stated, depth=40, magnitude=1 / SIGNAL)
