"""Models of a user's own whose ``predict`` does what only a variant meets: run as
declared, and one by one if not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from homemade_model import LEVELS, Forecaster, Wired
from tsfm_lens.ablation import Variant, forecast_variants, run_variants
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks import Component, Steer, writers
from tsfm_lens.models import Lens
from tsfm_lens.models.architecture import (
    Prediction,
    declare_row_independent,
    is_row_independent,
)
from tsfm_lens.testing import rounding

HORIZON = 6
BATCH = as_series(
    [
        np.sin(np.arange(40) / 3),
        3 * np.cos(np.arange(33) / 2),
        10 * np.sin(np.arange(40) / 5),
    ]
)


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights so large that every part matters."""
    torch.manual_seed(0)
    native = Forecaster()
    with torch.no_grad():
        for weight in native.parameters():
            weight.normal_(std=weight.shape[1] ** -0.5 if weight.ndim > 1 else 0.3)
    return native.eval()


def make_variants(lens: Lens) -> list[Variant]:
    push = Steer(
        "blocks.1.hook_resid_post",
        3 * torch.randn(lens.d_model, generator=torch.Generator().manual_seed(0)),
    )
    return [
        Variant("", ()),
        *[Variant.zero(part) for part in writers(lens.wiring)],
        Variant("pushed", (push,)),
    ]


def reached(lens: Lens) -> tuple[float, float]:
    """The largest absolute forecast of the plain model, and that of any variant."""
    alone = forecast_variants(
        lens, BATCH, HORIZON, make_variants(lens), quantiles=LEVELS, economy=False
    )
    return float(np.abs(alone.quantiles[0]).max()), float(np.abs(alone.quantiles).max())


def twice(limit: float) -> Any:
    """Where a forecast is large, the model runs once more, on half of the series."""

    class Twice(Wired):
        def predict(self, batch: SeriesBatch, *args: Any) -> Prediction:
            first = super().predict(batch, *args)
            if float(first.quantiles.abs().max()) <= limit:
                return first
            halves = super().predict(
                as_series([value / 2 for value in batch.values]), *args
            )
            large = first.quantiles.abs().amax(dim=(1, 2)) > limit
            parts = zip(halves[:3:2], first[:3:2], strict=True)
            new = [
                torch.where(large.reshape(-1, *[1] * (a.ndim - 1)), a, b)
                for a, b in parts
            ]
            return Prediction(new[0], None, new[1])

    return Twice


def check(lens: Lens, variants: list[Variant]) -> None:
    """Every variant as ``lens.forecast`` gives it, each series with its own values."""
    found = forecast_variants(lens, BATCH, HORIZON, variants, quantiles=LEVELS)
    for index, variant in enumerate(variants):
        with lens.edit(*variant.interventions):
            alone = lens.forecast(BATCH, HORIZON, quantiles=LEVELS)
        close(found.quantiles[index], alone.quantiles)
        close(found.mean[index], alone.mean)


def close(found: Any, alone: Any) -> None:
    for series, (ours, theirs) in enumerate(
        zip(np.asarray(found), np.asarray(alone), strict=True)
    ):
        largest = max(np.abs(theirs).max(), np.abs(BATCH.values[series]).max())
        assert np.abs(ours - theirs).max() <= rounding(
            "float32", float(largest), depth=200
        ), series


def declared(adapter: Any) -> Any:
    """The same adapter whose author says of its predict that rows stand apart."""
    return type(
        adapter.__name__,
        (adapter,),
        {
            "predict": declare_row_independent(
                lambda self, *args: adapter.predict(self, *args)
            )
        },
    )


@pytest.mark.parametrize("is_declared", [False, True], ids=["silent", "declared"])
def test_a_rule_that_only_variants_meet(model: Any, is_declared: bool) -> None:
    plain, largest = reached(Lens(Wired(model), "own"))
    assert largest > 1.05 * plain
    kind = twice((plain + largest) / 2)
    lens = Lens((declared(kind) if is_declared else kind)(model), "own")
    assert is_row_independent(lens.adapter) is is_declared
    # the rule is met by variants and by the plain model never
    assert reached(lens) != (plain, largest)
    assert reached(lens)[0] == plain
    check(lens, make_variants(lens))


def test_undeclared_model_runs_once_per_variant(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a declaration the model runs once for each variant."""
    rows: list[int] = []
    forward = model.forward
    monkeypatch.setitem(
        model.__dict__,
        "forward",
        lambda context: rows.append(len(context)) or forward(context),
    )
    for kind, expected in ((twice(1e9), [3] * 15), (declared(twice(1e9)), [3, 45])):
        lens = Lens(kind(model), "own")
        rows.clear()
        forecast_variants(
            lens,
            BATCH,
            HORIZON,
            [Variant.zero(Component("", 0, "attn"))] * 15,
            quantiles=LEVELS,
        )
        assert rows == expected


def test_repeated_modules_are_not_replayed(model: Any) -> None:
    """A forward pass that runs its modules twice is not replayed."""

    class BothSigns(Wired):  # type: ignore[misc]
        def run(self, inputs: Mapping[str, Any]) -> Tensor:
            return (
                self.model(inputs["context"]) - self.model(-inputs["context"]).flip(1)
            ) / 2

    lens = Lens(BothSigns(model), "own")
    variants = make_variants(lens)
    encoded = lens.encode(BATCH)
    found = run_variants(lens, encoded, variants)
    for index, variant in enumerate(variants):
        with torch.no_grad(), lens.edit(*variant.interventions):
            close(found[index], lens.forward(encoded))
    check(lens, variants)
