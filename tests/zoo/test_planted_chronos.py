"""Planted models in Chronos's format do what their cards say, for the reasons that their cards give."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.errors import CheckpointError, UnknownNameError
from tsfm_lens.hooks import Component
from tsfm_lens.hooks.component import writers
from tsfm_lens.models.run import Run
from tsfm_lens.testing.suite import check_lens
from tsfm_lens.zoo.planted import (
    Attends,
    Card,
    Gate,
    LinearTrend,
    LocalMean,
    Planted,
    draw_contexts,
    mechanisms,
    open_planted,
    plant,
    write_card,
)
from tsfm_lens.zoo.planted.__main__ import main
from tsfm_lens.zoo.planted.chronos import BIN, NAME

PLANTED = [mechanism for mechanism, architecture in mechanisms() if architecture == NAME]
CLOSE = 2 * BIN
"""A forecast is a bin, and what goes into it lies in bins."""

Array = np.ndarray


@lru_cache
def built(mechanism: str) -> Planted:
    return plant(mechanism, NAME, seed=3)


@pytest.fixture(params=PLANTED)
def planted(request: pytest.FixtureRequest) -> Planted:
    """Each mechanism, turned."""
    return built(request.param)


@lru_cache
def run_of(planted: Planted, seed: int = 7, noise: float = 0.05) -> Run:
    """A run on random series with observation noise; its path and point take no draw."""
    card = planted.card
    return planted.lens().run(list(draw_contexts(card.rule, 4, card.context, seed=seed, noise=noise)), card.horizon)


def scales(run: Run) -> Array:
    return np.array([np.abs(series).mean() for series in run.batch.values])[:, None]


def off_rule(planted: Planted, run: Run, forecast: Array) -> float:
    """Largest distance from the rule, in mean absolute values."""
    rule = [planted.card.rule.forecast(np.asarray(series), run.horizon) for series in run.batch.values]
    return float((np.abs(forecast - np.stack(rule)) / scales(run)).max())


def test_forecasts_by_its_rule(planted: Planted) -> None:
    run = run_of(planted)
    assert off_rule(planted, run, run.path) < CLOSE
    assert off_rule(planted, run, run.point) < CLOSE
    assert 0 < planted.card.error < CLOSE


def test_inputs_matter_as_stated(planted: Planted) -> None:
    """Moving one value moves the forecast by the rule's weight of it, and where that is 0 not at all."""
    card, lens = planted.card, planted.lens()
    # what finds its place by values must still know a value that is moved; a mean shares the move out
    bins, off_by = (100, 0.8) if isinstance(card.rule, LocalMean | LinearTrend) else (20, 3.0)
    # of a gate, the second series shows the other side
    for series in draw_contexts(card.rule, 2 if isinstance(card.rule, Gate) else 1, (card.context[0] + 6,) * 2, seed=2):
        unit = BIN * np.abs(series).mean()
        point = lens.run([series, *(series + bins * unit * np.eye(len(series)))], card.horizon).point
        weights = card.rule.inputs(series, card.horizon)
        off = np.abs((point[1:] - point[0]).T / unit - bins * weights)
        assert off.max() < off_by
        assert bins * weights[weights > 0].min() > 2 * off_by, "too small a move to be told from none"
        assert (weights == 0).any(), "a rule that uses every value would test nothing here"


def test_parts_matter_as_stated(planted: Planted) -> None:
    card, run = planted.card, run_of(planted)
    every = [each for stack in run.lens.wiring.stacks for each in writers(run.lens.wiring, stack.name)]
    without = point_forecasts(run, [Variant.zero(each) for each in every])
    effects = np.abs(without - run.point).__truediv__(scales(run)).max((1, 2))
    effect = {str(each): value for each, value in zip(every, effects, strict=True)}
    assert set(effect) >= {part.component for part in card.parts}
    needed = {name for name in card.components("mechanism") if not card.stands_in(name)}
    for name, value in effect.items():
        if name in needed:
            assert value > 2 * CLOSE, f"{card.name} does without {name}: {value:.3g}"
        else:
            assert value < 0.5 * CLOSE, f"{card.name} needs {name}: {value:.3g}"
    for part in card.parts:
        if part.stands_in_for:
            both = Variant.zero(Component.parse(part.component), Component.parse(part.stands_in_for))
            assert np.abs(point_forecasts(run, [both])[0] - run.point).max() > CLOSE * scales(run).max()


def expected_keys(looks: Attends, n_queries: int, n_keys: int) -> dict[int, list[int]]:
    """By query, the keys that a card says a head looks at."""
    crosses = Component.parse(looks.component).kind == "cross_attn"
    queries = {
        "every token": range(n_queries),
        "last token": [n_queries - 1],
        "last value": [n_queries - 2],
        "forecast token": range(n_queries),
        "first forecast token": [0],
        "later forecast tokens": range(1, n_queries),
    }[looks.query]
    keys = {}
    for query in queries:
        start = n_keys - 1 + looks.moves * query if crosses else query
        places = [start - back for back in looks.back]
        if all(0 <= place < n_keys for place in places):
            keys[query] = places
    return keys


def test_heads_look_where_stated(planted: Planted) -> None:
    card = planted.card
    # without a gate the odd series of a gate's rule would show the other side of it
    run = run_of(planted, noise=0.0).select([0])
    for looks in card.attends:
        head = Component.parse(looks.component)
        name = f"{head.stack}_blocks.{head.layer}.{head.kind}.hook_pattern"
        pattern = torch.as_tensor(run.record([name])[name])[0, head.head].double().numpy()
        keys = expected_keys(looks, *pattern.shape)
        assert keys
        for query, places in keys.items():
            assert pattern[query, places].sum() > looks.weight - 1e-3, f"{looks}: query {query}"
            shares = pattern[query, places]
            assert shares.max() - shares.min() < 0.01 * shares.max(), f"{looks}: query {query}"


@pytest.mark.parametrize("mechanism", ["seasonal-copy", "trend", "gate"])
def test_turning_the_stream_changes_weights_and_nothing_else(mechanism: str) -> None:
    planted = built(mechanism)
    # the builder has tried this one too on series of its own
    plain = plant(mechanism, NAME, seed=3, rotate=False)
    run, other = run_of(planted), run_of(plain)
    assert np.abs((run.point - other.point) / scales(run)).max() < 0.1 * BIN
    same = {"rotated": True, "error": planted.card.error}
    assert plain.card.model_copy(update=same) == planted.card
    zeros = [float((one.model.shared.weight == 0).double().mean()) for one in (plain, planted)]
    assert zeros[1] < 0.01 < 0.5 < zeros[0]


def test_all_oracles_pass() -> None:
    lens = plant("gate", NAME, seed=4).lens()
    assert [result for result in check_lens(lens) if not result.passed] == []


def test_the_command_builds_one(tmp_path: Path) -> None:
    main("local-mean", NAME, tmp_path / "made", seed=2)
    _, card = open_planted(tmp_path / "made")
    assert card.name == f"local-mean-{NAME}-2"
    with pytest.raises(UnknownNameError, match=f"seasonal-copy in {NAME}"):
        main("seasonal-copi", NAME, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_card_of_another_model_is_refused(tmp_path: Path) -> None:
    planted = built("seasonal-copy")
    planted.save(tmp_path)
    text = planted.card.model_dump_json().replace("decoder.1.cross_attn", "decoder.7.cross_attn")
    write_card(Card.model_validate_json(text), tmp_path)
    with pytest.raises(CheckpointError, match=r"decoder\.7\.cross_attn"):
        open_planted(tmp_path)
    # one of the same components, of other weights
    planted.save(tmp_path)
    plant("seasonal-copy", NAME, seed=3, weight_noise=0.01).model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="not the card of the weights"):
        open_planted(tmp_path)
