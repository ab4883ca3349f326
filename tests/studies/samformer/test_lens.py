"""The models behind a lens: every oracle, forecasts in data units, and no wrong table that passes."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens import probes
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError, WiringError
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.hooks.wiring import Projection, Wiring
from tsfm_lens.models import Lens, load
from tsfm_lens.models.wirings._common import spread_weights
from tsfm_lens.studies.samformer import ChannelAdapter, ChannelTransformer, LinearForecaster
from tsfm_lens.testing import ORACLES, Case, assert_close, check_wiring, example_case
from tsfm_lens.testing.oracles_ends import ends
from tsfm_lens.testing.suite import check_lens
from wrong_tables import behaviour, mutants, verdict

L, H, D = 24, 7, 3
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
    failed = [result for result in check_wiring(ChannelAdapter, drawn(**options), quiet=True) if not result.passed]
    assert not failed, failed


class Wrong(ChannelAdapter):
    """Queries and keys exchanged in the table."""

    def __init__(self, native: ChannelTransformer) -> None:
        super().__init__(native)
        row: Any = self.wiring.stacks[0].writers[0]
        object.__setattr__(row, "v", Projection("attn.k"))


class NotBack(ChannelAdapter):
    """A readout that forgets RevIN's inverse."""

    def head(self, normalized: torch.Tensor, encoded: Any) -> torch.Tensor:
        return self.model.readout(normalized).flatten(-3, -2).unsqueeze(-2)


@pytest.mark.parametrize(("wrong", "rejects"), [(Wrong, "10"), (NotBack, "3")])
def test_a_wrong_table_is_rejected(wrong: type[ChannelAdapter], rejects: str) -> None:
    failed = {
        result.oracle.split()[0]
        for result in check_lens(Lens(wrong(drawn(normalise=True)), "wrong"))
        if not result.passed
    }
    assert rejects in failed


def test_a_reparametrised_weight_is_put_back_after_an_oracle() -> None:
    model = drawn(sigma_reparam=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_lens(load(model), oracles=[ORACLES[3]])
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_forecast_is_in_the_units_of_the_series() -> None:
    """By the model itself, in double precision; and moved and stretched as the series are, but for ε."""
    model = drawn(normalise=True).double()
    with torch.no_grad():
        assert not isinstance(model.embed, torch.nn.Identity)
        model.embed.eps = 0.0
    lens = load(model)
    rng = np.random.default_rng(0)
    series = 20.0 + 5.0 * rng.standard_normal((D, L + 6))
    forecast = lens.forecast([series], H).mean
    expected = model(torch.tensor(series[:, -L:])[None])[0]
    assert_close(forecast, expected, depth=10)
    stretched = lens.forecast([3.0 * series - 40.0], H).mean
    assert_close(stretched, 3.0 * forecast - 40.0, depth=400, magnitude=300.0)


def test_probes_of_writers_and_streams_run_on_items() -> None:
    lens = load(drawn(normalise=True))
    series = lens.adapter.example(0, L).values
    run = lens.run([np.stack([np.append(each, np.zeros(H)) for each in series])], H, holdout=True)
    # with one attention and nothing else, the lens on the first stream is the forecast without the attention
    without = probes.ablation_effects(run)["forecast"].sel(component="0.attn.0")
    read_out = probes.logit_lens(run)["point_forecast"]
    assert_close(without.values, read_out.sel(layer="embed").values, depth=200, dtype="float32")
    assert_close(run.forecast.mean, read_out.sel(layer="0").values, depth=200, dtype="float32")
    pattern = run.record(["blocks.0.attn.hook_pattern"])["blocks.0.attn.hook_pattern"]
    assert pattern.shape == (1, 1, D, D)


def test_an_ablated_attention_leaves_the_linear_model() -> None:
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
        assert_close(without.reshape(2, D, H), linear(encoded.inputs["x"]), depth=100, magnitude=30.0)


@pytest.mark.parametrize(
    ("series", "says"),
    [
        (np.ones((D + 1, L)), "4 variates each, but this model was made for 3"),
        (np.ones(L), "1 variates each"),
        (np.ones((D, L - 1)), "has 23 steps, the model reads exactly 24"),
        (np.where(np.arange(L) == 5, np.nan, np.ones((D, L))), "gaps in its last 24 steps"),
    ],
    ids=["channels", "one channel", "short", "gaps"],
)
def test_series_that_the_model_cannot_take_are_refused(series: np.ndarray, says: str) -> None:
    lens = load(drawn(normalise=True))
    with pytest.raises(InputError, match=says):
        lens.forecast(as_series([series]), H)
    with pytest.raises(InputError, match="longer than the 7 steps"):
        lens.forecast(lens.adapter.example(0, L), H + 1)
    with pytest.raises(WiringError, match=r"lens_adapter\(\)"):
        load(torch.nn.Linear(2, 2))


def test_a_model_with_any_number_of_variates_is_checked_series_by_series() -> None:
    """The oracles look at items only where a model takes nothing else."""
    case = example_case(load(drawn(channels=None)))
    assert ends(case).passed


TABLES: dict[str, dict[str, Any]] = {"channels": {"channels": 3}, "time": {"channels": 5, "attention": "time"}}
EACH = pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)


def drawn_table(**options: Any) -> ChannelTransformer:
    model = spread_weights(ChannelTransformer(24, 7, width=4, normalise=True, bias=True, **options), {})
    with torch.no_grad():
        for weight in model.embed.parameters():
            weight += 0.3
    return model


def verdicts(options: dict[str, Any], every: int) -> dict[str, str]:
    """What became of every so-manieth mutant: "refused", "rejected by …", "equivalent", or "survives: …"."""
    model = drawn_table(**options)
    right = tuple(behaviour(example_case(Lens(model.lens_adapter(), "right"))))

    def case_of(wiring: Wiring) -> Case:
        adapter = model.lens_adapter()
        adapter.wiring = wiring
        return example_case(Lens(adapter, "wrong"))

    wrong = list(mutants(model, model.lens_adapter().wiring))
    assert len(wrong) >= 30, len(wrong)
    return {what: verdict(partial(case_of, wiring), right, (*ORACLES, None)) for what, wiring in wrong[::every]}


@EACH
def test_some_mutants_are_rejected_or_equivalent(options: dict[str, Any]) -> None:
    found = verdicts(options, every=24)
    assert not {what: said for what, said in found.items() if said.startswith("survives")}


@pytest.mark.campaign
@EACH
def test_every_mutant_is_rejected_or_equivalent(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    limit = os.environ.get("TSFM_LENS_CASES")
    found = verdicts(options, every=max(1, 60 // int(limit)) if limit else 1)
    counts = Counter(said.split(":")[0] for said in found.values())
    with capsys.disabled():
        print(f"\n{len(found)} mutants, {dict(counts)}")  # noqa: T201
    assert not {what: said for what, said in found.items() if said.startswith("survives")}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_heads": 0}, "n_heads=0, expected at least 1"),
        ({"d_mlp": 8}, "d_mlp=8, but no branch is an MLP"),
        ({"writers": ()}, "blocks.0 has no branch that writes"),
    ],
)
def test_sizes_that_no_model_has_are_refused_by_name(changes: dict[str, Any], says: str) -> None:
    adapter = drawn_table(channels=3).lens_adapter()
    adapter.wiring = replace(adapter.wiring, stacks=(replace(adapter.wiring.stacks[0], **changes),))
    with pytest.raises(WiringError, match=says):
        Lens(adapter, "wrong")
