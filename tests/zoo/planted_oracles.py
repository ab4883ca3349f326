"""What must hold of every planted patch model, whatever its format: oracles that know its card and its rule alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tsfm_lens.hooks import Component, PatchFrom, Zero
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close, quick_check, rounding
from tsfm_lens.zoo.planted import Card, Planted, open_planted
from tsfm_lens.zoo.planted.patches import DECILES, SIGNAL

Array = np.ndarray[Any, np.dtype[np.float64]]
EFFECT, HEARD = 20, 0.1
"""Of an effect, in tolerances; of another output of a part, in its longest: parts hear one another wholly or not."""


@lru_cache(maxsize=4)
def lens_of(planted: Planted) -> Lens:
    """Its lens, checked once when it is made."""
    return planted.lens()


def tolerance(*series: Array) -> float:
    """Rounding of a stream whose coordinates are of the order of 1, on values that are `SIGNAL` of a deviation."""
    return rounding("float32", max(float(np.std(one)) for one in series) / SIGNAL, depth=40)


SMALL = tolerance(np.array([-1.0, 1.0]))
"""Rounding, in deviations."""


def series_of(card: Card, count: int = 6, seed: int = 1) -> list[Array]:
    """White noise, noisy seasons and random walks, of lengths that the card allows and that fill no whole patch."""
    rng = np.random.default_rng(seed)
    drawn = []
    for index in range(count):
        length = int(rng.integers(*card.context, endpoint=True))
        noise, period = rng.standard_normal(length), getattr(card.rule, "period", 8)
        season = np.resize(rng.standard_normal(period), length) + 0.05 * noise
        shape = (noise, season, np.cumsum(noise))[index % 3]
        drawn.append((30.0 ** rng.uniform(-1, 1) * (shape + rng.uniform(-3, 3))).astype(np.float32).astype(float))
    return drawn


def assert_follows_rule(planted: Planted) -> None:
    """The median is the rule's closed form on random series, and the card's error is no larger than rounding."""
    card = planted.card
    series = series_of(card)
    median = lens_of(planted).forecast(series, card.horizon).median
    for one, forecast in zip(series, median, strict=True):
        off = np.abs(forecast - card.rule.forecast(one, card.horizon)).max()
        assert off <= tolerance(one), f"{card.name}: off by {off:.3g}, allowed {tolerance(one):.3g}"
    assert 0 < card.error <= SMALL


def assert_inputs_matter_as_stated(planted: Planted) -> None:
    """Moving one value moves the forecast by the rule's weight of it, whatever the instance norm does."""
    card = planted.card
    for one in series_of(card, count=2, seed=2):
        # short enough that every value can be moved
        base = one[-max(card.context[0], 48) :]
        step = 0.5 * float(np.std(base))
        moved = base + step * np.eye(len(base))
        median = lens_of(planted).forecast([base, *moved], card.horizon).median
        effects = (median[1:] - median[0]).T / step
        weights = card.rule.inputs(base, card.horizon)
        assert np.abs(effects - weights).max() * step <= 2 * tolerance(base)
        assert (weights == 0).any(), "a rule that uses every value would make this test empty"


def parts_of(lens: Lens) -> list[str]:
    """Every head and MLP."""
    return [str(part) for part in lens.components() if part.head is not None or part.kind == "mlp"]


def change(lens: Lens, series: list[Array], *ablated: str) -> float:
    """Largest change of the median in deviations when these components are set to 0, from what `series` gives."""
    encoded = lens.encode(series)
    with torch.no_grad():
        plain = lens.forward(encoded)
    with torch.no_grad(), lens.ablate(*ablated):
        without = lens.forward(encoded)
    off = (without - plain).abs()[:, len(DECILES) // 2].amax(1)
    return float((off / torch.tensor([np.std(one) for one in series])).max())


def assert_parts_matter_as_stated(planted: Planted) -> None:
    """Without a mechanism's part the forecast is another one; without a decoy or a part off the card it is the same."""
    card, lens = planted.card, lens_of(planted)
    series = series_of(card, count=3)
    kept = set(card.components("mechanism"))
    effects = {part: change(lens, series, part) for part in parts_of(lens)}
    assert set(effects) >= {part.component for part in card.parts}
    for part, effect in effects.items():
        if part in kept:
            assert effect > EFFECT * SMALL, f"{card.name} does without {part}: {effect:.3g}"
        else:
            assert effect <= SMALL, f"{card.name} needs {part}: {effect:.3g}"
    for part in card.parts:
        if part.role == "backup":
            assert part.stands_in_for
            with lens.ablate(part.stands_in_for):
                assert change(lens, series, part.component) > EFFECT * SMALL


def assert_edges_are_those_stated(planted: Planted) -> None:
    """A part hears another directly, all between them held as they were, if and only if the card has the edge."""
    card, lens = planted.card, lens_of(planted)
    series = series_of(card, count=3)
    parts = [part for part in card.parts if part.role != "decoy"]
    heard, written = set(), [hook_of(part.component) for part in parts]
    for sender in parts:
        # a backup speaks where what it stands in for is silent
        silent = [sender.stands_in_for] if sender.stands_in_for else []
        with torch.no_grad(), lens.ablate(*silent) if silent else nullcontext():
            plain = lens.run_with_cache(series, names_filter=written)
        for receiver in [*(part.component for part in parts), "output"]:
            between = {part.component for part in parts} - {sender.component, receiver, *silent}
            held = [PatchFrom(name, plain[1]) for name in between]
            with torch.no_grad(), lens.edit(*held, *(Zero(name) for name in [sender.component, *silent])):
                other = lens.run_with_cache(series, names_filter=written)
            if receiver != sender.component and _differ(plain, other, receiver, series):
                heard.add((sender.component, receiver))
    assert heard == set(card.edges), f"{heard - set(card.edges)} off the card, {set(card.edges) - heard} not heard"


def hook_of(component: str) -> str:
    """The hook point at which a head's values or an MLP's output stand."""
    place = Component.parse(component)
    name = f"{place.stack}_blocks.{place.layer}.{place.kind}".removeprefix("_")
    return f"{name}.hook_out" if place.head is None else f"{name}.hook_z"


def _differ(plain: Any, other: Any, receiver: str, series: list[Array]) -> bool:
    """Whether the median is another one, or a part writes another thing."""
    if receiver == "output":
        off = (plain[0] - other[0]).abs()[:, len(DECILES) // 2].amax(1)
        return float((off / torch.tensor([np.std(one) for one in series])).max()) > EFFECT * SMALL
    place, hook = Component.parse(receiver), hook_of(receiver)
    before, after = (run[1][hook] if place.head is None else run[1][hook][..., place.head, :] for run in (plain, other))
    return float((before - after).norm(dim=-1).max()) > HEARD * max(SIGNAL, float(before.norm(dim=-1).max()))


def pattern_of(lens: Lens, series: Any, component: str) -> Array:
    """Attention of one head: (series, query, key)."""
    head = Component.parse(component)
    name = f"{head.stack}_blocks.{head.layer}.{head.kind}.hook_pattern".removeprefix("_")
    _, acts = lens.run_with_cache(series, names_filter=[name])
    return np.asarray(acts[name][:, head.head].double())


def assert_heads_look_where_stated(planted: Planted, n_tokens: int) -> None:
    """On white noise that fills the context, every head on the card gives all keys that it names the same attention."""
    card = planted.card
    series = [np.random.default_rng(0).standard_normal(card.context[1])]
    for looks in card.attends:
        pattern = pattern_of(lens_of(planted), series, looks.component)[0]
        assert pattern.shape[1] == n_tokens
        last = n_tokens - 1
        for query in range(max(looks.back), n_tokens) if looks.query == "every token" else [last]:
            row = pattern[0] if looks.query == "forecast token" else pattern[query]
            keys = [query - back for back in looks.back]
            assert_close(row[keys], looks.weight / len(keys), depth=64, magnitude=1.0, dtype="float32")


def assert_saved_is_the_same(planted: Planted, folder: Path) -> None:
    """Opened by the native loader, the model makes the same forecast bit for bit, and its card says the same."""
    planted.save(folder)
    lens, card = open_planted(folder)
    assert card == planted.card
    series = series_of(card, count=3)
    opened, made = (one.forecast(series, card.horizon).quantiles for one in (lens, lens_of(planted)))
    np.testing.assert_array_equal(opened, made)
    assert all(result.passed for result in quick_check(lens))


def assert_same_in_any_basis(plain: Planted, turned: Planted) -> None:
    """Turned, the weights are others and the forecast, the parts and the rule are the same."""
    series = series_of(plain.card)
    there, here = (lens_of(planted).forecast(series, plain.card.horizon).quantiles for planted in (plain, turned))
    for one, other, shown in zip(there, here, series, strict=True):
        assert np.abs(one - other).max() <= tolerance(shown)
    unturned = {"name": plain.card.name, "rotated": False, "error": plain.card.error}
    assert turned.card.model_copy(update=unturned) == plain.card
    assert turned.card.rotated
    assert share_of_zeros(plain.model) > share_of_zeros(turned.model)


def share_of_zeros(model: torch.nn.Module) -> float:
    """Share of the entries of all matrices that are exactly 0."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    return sum(int((weight == 0).sum()) for weight in matrices) / sum(weight.numel() for weight in matrices)


def assert_quantiles_spread(
    planted: Planted, deviates: Array, squash: Any = np.asarray, scale: Callable[[Array], Any] = np.std
) -> None:
    """Every level lies as far from the median as stated, where the readout writes it."""
    card = planted.card
    series = series_of(card)
    quantiles = lens_of(planted).forecast(series, card.horizon).quantiles
    for one, levels in zip(series, quantiles, strict=True):
        written = squash((levels - np.mean(one)) / scale(one))
        stated = np.repeat(deviates[:, None], card.horizon, 1)
        apart = written - written[len(deviates) // 2]
        assert_close(apart, stated, depth=40, magnitude=1 / SIGNAL, dtype="float32")
