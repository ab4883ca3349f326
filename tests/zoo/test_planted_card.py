"""Cards of planted models: written and read, complete or refused; rules against brute force; what all formats share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tsfm_lens.errors import CheckpointError, InputError
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo.planted import (
    Attends,
    Card,
    Gate,
    LinearTrend,
    LocalMean,
    PlantedPart,
    SeasonalCopy,
    draw_contexts,
    read_card,
    write_card,
)
from tsfm_lens.zoo.planted.draft import Basis, add_weight_noise
from tsfm_lens.zoo.planted.rules import shape

HEAD, BACKUP = "decoder.1.cross_attn.0", "decoder.2.cross_attn.3"

CARD = Card(
    name="backup-chronos-0",
    mechanism="backup",
    architecture="chronos",
    seed=0,
    rotated=True,
    weight_noise=0.0,
    rule=SeasonalCopy(period=12),
    parts=(
        PlantedPart(component=HEAD, role="mechanism", does="copies"),
        PlantedPart(component=BACKUP, role="backup", does="copies too", stands_in_for=HEAD),
    ),
    edges=((HEAD, "output"), (BACKUP, "output")),
    attends=(Attends(component=HEAD, query="forecast token", back=(12,), moves=1, weight=1.0),),
    context=(15, 64),
    horizon=12,
    error=0.01,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, r"no mechanism\.json"),
        (b"\xff\xfe", r"mechanism\.json"),
        (b"[1, 2]", r"mechanism\.json"),
        (CARD.model_dump_json()[:100].encode(), "JSON"),
        ({"rule": ...}, "rule"),
        ({"parts": ...}, "parts"),
        ({"error": ...}, "error"),
        ({"edges": [["decoder.0.mlp", "output"]]}, r"decoder\.0\.mlp"),
        ({"parts": [{"component": HEAD, "role": "decoy", "does": "nothing"}], "edges": []}, "mechanism"),
        ({"colour": "green"}, "colour"),
        ({"error": -1}, "error"),
        ({"context": [64, 15]}, "context"),
        ({"edges": [[HEAD, BACKUP]]}, "output"),
        ({"parts": 2 * [{"component": HEAD, "role": "mechanism", "does": "copies"}], "edges": []}, "two parts"),
    ],
)
def test_what_is_no_card_or_contradicts_itself_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    if isinstance(change, dict):
        content = {**json.loads(CARD.model_dump_json()), **change}
        change = json.dumps({name: value for name, value in content.items() if value is not ...}).encode()
    if change is not None:
        (tmp_path / "mechanism.json").write_bytes(change)
    with pytest.raises(CheckpointError, match=words):
        read_card(tmp_path)


def test_a_card_is_of_its_weights_and_neither_may_change(tmp_path: Path) -> None:
    assert CARD.stands_in(HEAD) == (BACKUP,)
    assert CARD.stands_in(BACKUP) == ()
    write_card(CARD, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mechanism.json"]
    weights = tmp_path / "model.safetensors"
    save_file({"a": np.arange(4.0), "b": np.ones(2)}, weights)
    write_card(CARD, tmp_path)
    assert read_card(tmp_path) == CARD
    # the order of the file is not what counts
    save_file({"b": np.ones(2), "a": np.arange(4.0)}, weights)
    assert read_card(tmp_path) == CARD
    whole = json.loads((tmp_path / "mechanism.json").read_text())
    for change in ({"horizon": 24}, {"edges": []}, {"seal": None}, {"rule": {"kind": "seasonal copy", "period": 6}}):
        (tmp_path / "mechanism.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(CheckpointError, match="not the card of the weights"):
            read_card(tmp_path)
    write_card(CARD, tmp_path)
    for tensors in ({"a": np.arange(4.0), "b": np.array([1.0, 2.0])}, {"a": np.arange(4.0)}):
        save_file(tensors, weights)
        with pytest.raises(CheckpointError, match="not the card of the weights"):
            read_card(tmp_path)
    weights.write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="holds no weights"):
        read_card(tmp_path)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="noise 3 hides the seasons"):
        draw_contexts(Gate(period=5, tolerance=0.2), 2, (12, 20), noise=3.0)
    with pytest.raises(InputError, match="7 directions do not fit into a stream of width 6"):
        Basis.draw(6, {"value": 7}, seed=0, rotate=False)


def by_hand(rule: SeasonalCopy | LocalMean | LinearTrend | Gate, x: list[float], horizon: int) -> list[float]:
    """The rule's definition, a value at a time."""
    values = list(x)
    for step in range(horizon):
        match rule:
            case SeasonalCopy():
                values.append(values[len(values) - rule.period])
            case LocalMean():
                values.append(sum(x[-rule.width :]) / rule.width)
            case LinearTrend():
                late = sum(x[-rule.width :]) / rule.width
                early = sum(x[-rule.width - rule.lag : -rule.lag]) / rule.width
                middle = len(x) - 1 - (rule.width - 1) / 2
                values.append(late + (late - early) / rule.lag * (len(x) + step - middle))
            case Gate():
                pairs = zip(x[-rule.period :], x[-2 * rule.period : -rule.period], strict=True)
                change = sum(abs(a - b) for a, b in pairs) / rule.period
                seasonal = change <= rule.tolerance * sum(map(abs, x)) / len(x)
                values.append(values[len(values) - rule.period] if seasonal else x[-1])
    return values[len(x) :]


RULES = [
    SeasonalCopy(period=5),
    LocalMean(width=4),
    LinearTrend(width=3, lag=6),
    Gate(period=5, tolerance=0.2),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_is_its_definition_and_its_inputs_its_derivative(
    rule: SeasonalCopy | LocalMean | LinearTrend | Gate,
) -> None:
    for context in draw_contexts(rule, 4, (12, 20), seed=1, noise=0.02):
        forecast = rule.forecast(context, 12)
        assert_close(forecast, by_hand(rule, context.tolist(), 12), depth=100)
        inputs = rule.inputs(context, 12)
        for place in range(len(context)):
            bumped = context + 1e-6 * np.eye(len(context))[place]
            moved = (rule.forecast(bumped, 12) - forecast) / 1e-6
            assert_close(moved, inputs[:, place], depth=100, magnitude=1e6 * np.abs(context).max())


@pytest.mark.parametrize("period", [1, 4, 12, 24])
def test_in_a_shape_every_two_in_a_row_tell_the_phase_and_not_every_one(period: int) -> None:
    drawn = shape(period, np.random.default_rng(0)).tolist()
    pairs = list(zip(drawn, drawn[1:] + drawn[:1], strict=True))
    assert len(set(pairs)) == len(drawn) == period
    assert period <= 4 or len(set(drawn)) < period


@pytest.mark.parametrize("rotate", [False, True])
def test_directions_are_orthonormal_and_lie_on_axes_only_if_not_turned(rotate: bool) -> None:
    basis = Basis.draw(12, {"value": 1, "wave": 6}, seed=3, rotate=rotate)
    both = basis.span("wave", "value")
    assert_close(both @ both.T, torch.eye(7, dtype=torch.float64), depth=100)
    assert ((both.abs() > 0.99).any(1).all()) == (not rotate)


def test_weight_noise_is_relative_to_each_matrix_and_spares_norms() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(200, 100, bias=False), torch.nn.RMSNorm(100))
    model[0].weight.data *= 7.0
    before = model[0].weight.detach().clone()
    add_weight_noise(model, 0.1, seed=0)
    change = (model[0].weight.detach() - before).square().mean().sqrt() / before.square().mean().sqrt()
    # the spread of 20,000 draws is known to half a percent
    assert 0.09 < float(change) < 0.11
    assert torch.equal(model[1].weight, torch.ones(100))
