"""Changes of attention sinks are exact, and planted sinks are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor

import tsfm_lens
from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, archetypes, lens_of, tiny
from tsfm_lens import probes, testing
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.core.registry import find
from tsfm_lens.data import bundled_names
from tsfm_lens.hooks import EditPattern
from tsfm_lens.hooks.component import Component
from tsfm_lens.models import load
from tsfm_lens.models.noise import ranges
from tsfm_lens.testing.models import random_config

# of two heads; the others with ``make exhaustive``
SEEDS = [0, 3, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
EMBEDDED = ("chronos-nano", "bolt-nano", "chronos2-nano")
GAIN = 4.0
"""Factor on the output of a planted head, so that it has a say."""


def waves(count: int = 6, steps: int = 64) -> list[np.ndarray]:
    """Series of different levels, seasons and noise."""
    rng = np.random.default_rng(0)
    times = np.arange(steps)
    return [
        10
        + index
        + (1 + index) * np.sin(2 * np.pi * times / (6 + 3 * index))
        + 0.3 * rng.normal(size=steps)
        for index in range(count)
    ]


def plant_sink(name: str, kind: str, seed: int) -> tuple[Any, Component]:
    """A tiny model with a sink on the special token of its encoder, and its head.

    All tokens have the direction ``all_have``, which the head's queries read; the
    special token alone has ``special``, which the keys read. Nothing else writes there.
    """
    model = tiny(name)
    testing.spread_weights(model, random_config(name)["gains"], seed=seed)
    generator = torch.Generator().manual_seed(seed)
    width = model.config.d_model
    basis = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    special, all_have = basis[:, 0], basis[:, 1]
    rest = basis[:, 2:] @ basis[:, 2:].T
    size = 0.5 * width**0.5
    # all series have the same embedding of the special token, which learns of them in
    # the first layer
    layer = 1 if kind == "broadcast" else 0
    head = seed % model.config.num_heads
    with torch.no_grad():
        for block in model.encoder.block:
            for part in block.layer:
                part.layer_norm.weight.fill_(1.0)
            for matrix in (
                block.layer[0].SelfAttention.o,
                block.layer[1].DenseReluDense.wo,
            ):
                matrix.weight.copy_(rest @ matrix.weight)
        embeddings = model.shared.weight
        if name == "chronos":
            embeddings.copy_(embeddings @ rest + size * all_have)
        else:
            patches = model.input_patch_embedding
            for linear in (patches.output_layer, patches.residual_layer):
                linear.weight.copy_(rest @ linear.weight)
                linear.bias.copy_(rest @ linear.bias)
            patches.output_layer.bias += size * all_have
        # EOS and REG both have the id 1
        embeddings[1] = size * (2 * special + all_have)
        first = model.encoder.block[0].layer[0].SelfAttention
        first.relative_attention_bias.weight[:, head] = 0.0
        attention = model.encoder.block[layer].layer[0].SelfAttention
        rows = slice(head * model.config.d_kv, (head + 1) * model.config.d_kv)
        attention.q.weight[rows] = 0.0
        attention.k.weight[rows] = 0.0
        attention.q.weight[rows.start] = all_have
        attention.k.weight[rows.start] = special
        if kind == "broadcast":
            # what the first layer writes makes both directions a small part of the
            # stream
            attention.q.weight[rows.start] *= GAIN**2
        value = attention.v.weight[rows] @ rest
        if kind == "bias":
            draw = torch.randn(model.config.d_kv, generator=generator)
            value += torch.outer(draw, special)
        if kind == "broadcast":
            value = read_differences(model, value)
        attention.v.weight[rows] = value
        attention.o.weight[:, rows] *= GAIN
    return model, Component("encoder", layer, "self_attn", head)


def read_differences(model: Any, value: Tensor) -> Tensor:
    """Value weights (d_head, d_model) that read what differs between the series.

    They read the directions in which the special token differs most after one layer, at
    right angles to its mean.
    """
    run = load(model, check=False).run(waves(), 6, rollout=False)
    stream = run.record(["encoder_blocks.1.hook_resid_pre"])[
        "encoder_blocks.1.hook_resid_pre"
    ][:, -1]
    token = stream / stream.square().mean(dim=-1, keepdim=True).sqrt()
    mean = token.mean(dim=0)
    across = token - torch.outer(token @ mean, mean) / mean.square().sum()
    _, sizes, directions = torch.linalg.svd(across)
    count = 3
    return GAIN * value[:, :count] @ (directions[:count] / sizes[:count, None])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["nop", "bias", "broadcast"])
@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_planted_sinks_are_told_apart(name: str, kind: str, seed: int) -> None:
    model, component = plant_sink(name, kind, seed)
    run = load(model, check=False).run(waves(), 6, rollout=False)
    found = probes.attention_sinks(run).sel(component=str(component))
    assert found["key_special"] in ("EOS", "REG")
    assert str(found["sink"].values) == kind


@dataclass(frozen=True, eq=False)
class Value:
    """Sets the value of one key of one head to another, at ``hook_v``."""

    target: str
    head: int
    key: int
    value: Tensor
    rows: None = None
    positions: None = None

    def change(self, point: Any) -> Any:
        def replaced(value: Tensor, _state: Any) -> Tensor:
            altered = value.clone()
            altered[:, self.key, self.head] = self.value.to(value)
            return altered

        return replaced


def read_values(run: Any, found: xr.Dataset) -> Iterator[tuple[Component, int, Tensor]]:
    """Each head with a sink, the key, and the values of the key (series, d_head).

    Skips where heads share their values.
    """
    for name, key in zip(found["component"].values, found["key"].values, strict=True):
        head = Component.parse(str(name))
        prefix = run.lens.wiring.stack(head.stack).prefix
        point = f"{prefix}.{head.layer}.{head.kind}.hook_v"
        values = run.record([point])[point]
        if values.shape[-2] != run.lens.wiring.stack(head.stack).n_heads:
            pytest.skip("heads share their values")
        yield head, int(key), values[:, int(key), head.head]


def put(head: Component, key: int, value: Tensor) -> Variant:
    """The model with a value of a key set to another."""
    assert head.head is not None
    stack = "" if not head.stack else f"{head.stack}_"
    point = f"{stack}blocks.{head.layer}.{head.kind}.hook_v"
    return Variant("", (Value(point, head.head, key, value),))


def check_changes(run: Any, found: xr.Dataset, name: str, expected: np.ndarray) -> None:
    """Hold changes (component, series) to forecasts (component, series, step)."""
    spans = ranges(run, run.point)
    changes = np.abs(expected - run.point)[..., run.first_step :].mean(-1) / spans
    # a change is the difference of forecasts, whose size sets the rounding
    level = max(np.abs(run.point).max() / spans.min(), np.nanmax(changes))
    close_in_float32(found[name].values, changes, 1000, level, name)


def masked(key: int) -> Any:
    """Function of a pattern that masks a key, and normalises rows with other keys."""

    def edit(pattern: Tensor) -> Tensor:
        others = pattern.clone()
        others[..., key] = 0.0
        total = others.sum(dim=-1, keepdim=True)
        return torch.where(total > 0, others / total, pattern)

    return edit


# a language model takes no series of numbers
@pytest.mark.parametrize(
    "name", archetypes([name for name in ATTENDING if name != "t5"])
)
def test_changes_are_those_of_hooks(name: str) -> None:
    """Values and patterns that hooks change inside the attention give the same."""
    lens = lens_of(name)
    # around zero, as all values of a high level are in one bin of a small model
    # models of long patches need several tokens
    series = [values - values.mean() for values in waves(3, steps=256)]
    run = lens.run(series, 3, rollout=False)
    found = probes.attention_sinks(run, least=1.01)
    sinks = found.isel(component=found["sink"].values != "none")
    variants = []
    for head, key, values in read_values(run, sinks):
        variants += [
            put(head, key, torch.zeros(())),
            put(head, key, values.mean(dim=0)),
            Variant("", (EditPattern(head, masked(key)),)),
        ]
    forecasts = point_forecasts(run, variants).reshape(-1, 3, *run.point.shape)
    for index, change in enumerate(("value_zero", "value_mean", "masked")):
        check_changes(run, sinks, change, forecasts[:, index])


@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano"])
def test_padding_is_in_no_mean(name: str) -> None:
    """The mean of a value is that over series that have the token."""
    lens = tsfm_lens.load(name)
    rng = np.random.default_rng(3)
    series = [
        np.sin(2 * np.pi * np.arange(-length, 0) / (8 + index))
        + 0.1 * rng.normal(size=length)
        for index, length in enumerate((40, 64, 100, 128, 33, 90))
    ]
    run = lens.run(series, 6, rollout=False)
    found = probes.attention_sinks(run, least=1.5)
    found = found.isel(component=found["sink"].values != "none")
    expected = []
    for head, key, values in read_values(run, found):
        # the keys of all attentions of the encoder and across are its tokens
        stack = "decoder" if str(head).startswith("decoder.0.self") else "encoder"
        having = run.encoded.shown(stack)[:, key]
        mean = put(head, key, values[having].mean(dim=0))
        (forecast,) = point_forecasts(run, [mean])
        expected.append(np.where(having[:, None], forecast, np.nan))
    check_changes(run, found, "value_mean", np.array(expected))
    if name == "bolt-nano":
        assert found["value_mean"].isnull().any()


def test_a_short_series_hides_no_sink_of_others() -> None:
    """It has too few tokens to count, and its odds are unknown."""
    model, component = plant_sink("chronos-bolt", "bias", 0)
    lens = load(model, check=False)
    series = [*waves(), waves()[0][-5:]]
    found = probes.attention_sinks(lens.run(series, 6, rollout=False))
    assert np.isnan(found["odds"].sel(component=str(component), series="series-6"))
    assert str(found["sink"].sel(component=str(component)).values) == "bias"
    (panel,) = find("attention_sinks").draw_panels(found)
    assert np.isfinite(np.asarray(panel.figure.data[0].z, dtype=float)).any()


def test_the_start_token_has_a_name() -> None:
    """It is the first of a decoder of tokens, and stands for no step."""
    run = tsfm_lens.load("chronos-nano").run([np.cumsum(np.sin(np.arange(96.0)))], 24)
    found = probes.attention_sinks(run)
    in_decoder = found["stack"] == "decoder"
    own = in_decoder & (found["kind"] == "self_attn")
    first = own & (found["key"] == 0)
    assert first.any()
    assert (found["key_special"].where(first, "START") == "START").all()
    assert (found["key_special"].where(~first, "") != "START").all()
    (panel,) = find("attention_sinks").draw_panels(found)
    notes = np.ravel(panel.figure.data[0].customdata).astype(str)
    assert any(note.startswith("START, ") for note in notes)
    assert not any(note.startswith("step 0,") for note in notes)
    # the first token of an encoder is the oldest value
    first_of_encoder = ~in_decoder & (found["key"] == 0)
    assert (found["key_special"].where(first_of_encoder, "") == "").all()


def test_flat_series_are_named_as_the_reason() -> None:
    run = tsfm_lens.load("bolt-nano").run([np.ones(64)], 6)
    (panel,) = find("attention_sinks").draw_panels(probes.attention_sinks(run))
    assert "flat" in panel.sentences[0]


@pytest.mark.parametrize("name", EMBEDDED)
def test_untrained_models_have_few_sinks(name: str) -> None:
    series = [tsfm_lens.bundled(each).values[0][-96:] for each in bundled_names()[:6]]
    run = tsfm_lens.load(name).run(series, 24)
    shares = [
        np.mean(probes.attention_sinks(run.twin(twin))["sink"].values != "none")
        for twin in range(4)
    ]
    assert np.mean(shares) <= 0.05


def test_one_series_cannot_tell_a_bias_from_a_broadcast() -> None:
    model, component = plant_sink("chronos-bolt", "bias", 0)
    series = waves()[0]
    lens = load(model, check=False)
    for batch in ([series], [series, series]):
        found = probes.attention_sinks(lens.run(batch, 6))
        named = found.sel(component=str(component))
        assert str(named["sink"].values) == "bias or broadcast"
        assert np.isnan(named["value_mean"]).all()


def test_no_sink_is_said_plainly() -> None:
    run = tsfm_lens.load("bolt-nano").run(waves(), 6)
    found = run.measure("attention_sinks")
    assert (found["sink"] == "none").all()
    # its decoder has one token, and a single query has no sink
    assert np.isnan(found["odds"].sel(component="decoder.0.cross_attn.0")).all()
    (panel,) = find("attention_sinks").draw_panels(found)
    assert panel.sentences[0].startswith("No sink")


def test_limits_of_numpy_are_numbers() -> None:
    run = tsfm_lens.load("bolt-nano").run(waves(2), 6)
    limits = {"least": np.float32(30), "smallest": np.float32(0.5)}
    assert probes.attention_sinks(run, **limits).attrs["least"] == limits["least"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"least": 1}, "least is 1"),
        ({"smallest": 2}, "smallest"),
        ({"smallest": True}, "smallest"),
    ],
    ids=str,
)
def test_wrong_limits_are_refused(options: dict[str, float], words: str) -> None:
    run = tsfm_lens.load("bolt-nano").run(waves(), 6)
    expect_error(words, probes.attention_sinks, run, **options)
