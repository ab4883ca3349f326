"""Cards of planted models: written and read, complete or refused; rules against brute
force; what all formats share.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from refusals import expect_error
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

HEAD = "decoder.1.cross_attn.0"
BACKUP = "decoder.2.cross_attn.3"

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
        PlantedPart(
            component=BACKUP, role="backup", does="copies too", stands_in_for=HEAD
        ),
    ),
    edges=((HEAD, "output"), (BACKUP, "output")),
    attends=(
        Attends(
            component=HEAD, query="forecast token", back=(12,), moves=1, weight=1.0
        ),
    ),
    context=(15, 64),
    horizon=12,
    error=0.01,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, r"no mechanism\.json"),
        (b"\xff\xfe", r"mechanism\.json"),
        (b"[1, 2]", r"mechanism\.json"),
        (CARD.model_dump_json()[:100].encode(), "JSON"),
        ({"rule": ...}, "rule"),
        ({"parts": ...}, "parts"),
        ({"error": ...}, "error"),
        ({"colour": "green"}, "colour"),
        ({"error": -1}, "error"),
    ],
)
def test_what_is_no_card_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    if isinstance(change, dict):
        content = {**json.loads(CARD.model_dump_json()), **change}
        change = json.dumps(
            {name: value for name, value in content.items() if value is not ...}
        ).encode()
    if change is not None:
        (tmp_path / "mechanism.json").write_bytes(change)
    expect_error(message, read_card, tmp_path)


def test_card_and_weights_cannot_change(tmp_path: Path) -> None:
    """A card is of its weights, and neither may change."""
    write_card(CARD, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mechanism.json"]
    weights = tmp_path / "model.safetensors"
    save_file({"a": np.arange(4.0), "b": np.ones(2)}, weights)
    write_card(CARD, tmp_path)
    assert read_card(tmp_path) == CARD
    # the order of the file is not what counts
    save_file({"b": np.ones(2), "a": np.arange(4.0)}, weights)
    assert read_card(tmp_path) == CARD
    full = json.loads((tmp_path / "mechanism.json").read_text())
    for change in (
        {"horizon": 24},
        {"edges": []},
        {"seal": None},
        {"rule": {"kind": "seasonal copy", "period": 6}},
    ):
        (tmp_path / "mechanism.json").write_text(json.dumps({**full, **change}))
        expect_error("not the card of the weights", read_card, tmp_path)
    write_card(CARD, tmp_path)
    for tensors in (
        {"a": np.arange(4.0), "b": np.array([1.0, 2.0])},
        {"a": np.arange(4.0)},
    ):
        save_file(tensors, weights)
        expect_error("not the card of the weights", read_card, tmp_path)
    weights.write_bytes(b"no tensors")
    expect_error("holds no weights", read_card, tmp_path)


def test_what_cannot_be_drawn_is_refused() -> None:
    expect_error(
        "noise 3 hides the seasons",
        draw_contexts,
        Gate(period=5, tolerance=0.2),
        2,
        (12, 20),
        noise=3.0,
    )


def by_hand(
    rule: SeasonalCopy | LocalMean | LinearTrend | Gate, x: list[float], horizon: int
) -> list[float]:
    """The rule's definition, a value at a time, of the mean of the contexts that end
    earlier.
    """
    unit = sum(map(abs, x)) / len(x)
    most = max(rule.ago)
    x = [
        sum(x[i + most - ago] for ago in rule.ago) / len(rule.ago)
        for i in range(len(x) - most)
    ]
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
                values.append(
                    late + (late - early) / rule.lag * (len(x) + step - middle)
                )
            case Gate():
                pairs = zip(
                    x[-rule.period :], x[-2 * rule.period : -rule.period], strict=True
                )
                change = sum(abs(a - b) for a, b in pairs) / rule.period
                seasonal = change <= rule.tolerance * unit
                values.append(values[len(values) - rule.period] if seasonal else x[-1])
    return values[len(x) :]


RULES = [
    SeasonalCopy(period=5),
    LocalMean(width=4),
    LinearTrend(width=3, lag=6),
    Gate(period=5, tolerance=0.2),
    SeasonalCopy(period=5, ago=(2, 7)),
    LinearTrend(width=3, lag=6, ago=(0, 3)),
    Gate(period=5, tolerance=0.2, ago=(2,)),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_match_definition_and_derivative(
    rule: SeasonalCopy | LocalMean | LinearTrend | Gate,
) -> None:
    """A rule follows its definition, and its inputs are the derivative."""
    for context in draw_contexts(rule, 4, (12, 20), seed=1, noise=0.02):
        forecast = rule.forecast(context, 12)
        assert_close(forecast, by_hand(rule, context.tolist(), 12), depth=100)
        inputs = rule.inputs(context, 12)
        for position in range(len(context)):
            bumped = context + 1e-6 * np.eye(len(context))[position]
            moved = (rule.forecast(bumped, 12) - forecast) / 1e-6
            assert_close(
                moved,
                inputs[:, position],
                depth=100,
                magnitude=1e6 * np.abs(context).max(),
            )
