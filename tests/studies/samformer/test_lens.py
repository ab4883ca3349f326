"""The models behind a lens: every oracle, forecasts in data units, and no wrong table
that passes.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from refusals import expect_error
from tsfm_lens.data import as_series
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models import Lens, load
from tsfm_lens.studies.samformer.models import ChannelTransformer, LinearForecaster
from tsfm_lens.studies.samformer.wiring import ChannelAdapter
from tsfm_lens.testing import (
    ORACLES,
    Case,
    assert_close,
    check_wiring,
    example_case,
    spread_weights,
)
from tsfm_lens.testing.suite import check_lens
from wrong_tables import behaviour, mutants, verdict

L = 24
H = 7
D = 3
KINDS: dict[str, dict[str, Any]] = {
    "transformer": {"channels": None},
    "samformer": {"normalise": True},
    "random transformer with biases": {"frozen": True, "bias": True},
    "identity attention": {"normalise": True, "attention": "identity"},
    "attention over time": {"channels": 5, "normalise": True, "attention": "time"},
    "reparametrised": {"normalise": True, "sigma_reparam": True},
}


def drawn(channels: int | None = D, **options: Any) -> ChannelTransformer:
    model = spread_weights(ChannelTransformer(L, H, channels, width=4, **options), {})
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.startswith("embed"):
                weight += 0.3
    return model


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_every_oracle_holds(options: dict[str, Any]) -> None:
    failed = [
        result
        for result in check_wiring(ChannelAdapter, drawn(**options), quiet=True)
        if not result.passed
    ]
    assert not failed, failed


def test_oracles_put_reparametrised_weights_back() -> None:
    model = drawn(sigma_reparam=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_lens(load(model), oracles=[ORACLES[3]])
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_ablated_attention_leaves_the_linear_model() -> None:
    model = drawn(normalise=True)
    lens = load(model)
    batch = lens.adapter.example(1, L)
    linear = LinearForecaster(L, H, D, normalise=True)
    with torch.no_grad():
        linear.readout.weight.copy_(model.readout.weight)
        assert linear.revin is not None
        linear.revin.load_state_dict(model.embed.state_dict())
        encoded = lens.encode(batch)
        with lens.edit(Zero("blocks.0.attn.hook_out")):
            without = lens.forward(encoded)
        assert_close(
            without.reshape(2, D, H),
            linear(encoded.inputs["x"]),
            depth=100,
            magnitude=30.0,
        )


@pytest.mark.parametrize(
    ("series", "says"),
    [
        (np.ones((D + 1, L)), "4 variates each, but this model was made for 3"),
        (np.ones(L), "1 variates each"),
        (np.ones((D, L - 1)), "has 23 steps, the model reads exactly 24"),
        (
            np.where(np.arange(L) == 5, np.nan, np.ones((D, L))),
            "gaps in its last 24 steps",
        ),
    ],
    ids=["channels", "one channel", "short", "gaps"],
)
def test_series_of_wrong_shapes_are_refused(series: np.ndarray, says: str) -> None:
    """Series that the model cannot take are refused."""
    lens = load(drawn(normalise=True))
    expect_error(says, lens.forecast, as_series([series]), H)
    expect_error(
        "longer than the 7 steps", lens.forecast, lens.adapter.example(0, L), H + 1
    )
    expect_error(r"lens_adapter\(\)", load, torch.nn.Linear(2, 2))


TABLES: dict[str, dict[str, Any]] = {
    "channels": {"channels": 3},
    "time": {"channels": 5, "attention": "time"},
}
EACH = pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)


def verdicts(options: dict[str, Any], every: int) -> dict[str, str]:
    """What became of every so-manieth mutant: "refused", "rejected by …", "equivalent",
    or "survives: …".
    """
    model = drawn(normalise=True, bias=True, **options)
    right = tuple(behaviour(example_case(Lens(model.lens_adapter(), "right"))))

    def build_case(wiring: Wiring) -> Case:
        adapter = model.lens_adapter()
        adapter.wiring = wiring
        return example_case(Lens(adapter, "wrong"))

    wrong = list(mutants(model, model.lens_adapter().wiring))
    assert len(wrong) >= 30, len(wrong)
    return {
        mutant: verdict(partial(build_case, wiring), right, (*ORACLES, None))
        for mutant, wiring in wrong[::every]
    }


@EACH
def test_some_mutants_are_rejected_or_equivalent(options: dict[str, Any]) -> None:
    found = verdicts(options, every=24)
    assert not {
        mutant: messages
        for mutant, messages in found.items()
        if messages.startswith("survives")
    }


@pytest.mark.campaign
@EACH
def test_every_mutant_is_rejected_or_equivalent(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    limit = os.environ.get("TSFM_LENS_CASES")
    found = verdicts(options, every=max(1, 60 // int(limit)) if limit else 1)
    counts = Counter(messages.split(":")[0] for messages in found.values())
    with capsys.disabled():
        print(f"\n{len(found)} mutants, {dict(counts)}")  # noqa: T201
    assert not {
        mutant: messages
        for mutant, messages in found.items()
        if messages.startswith("survives")
    }
