"""Effects of tuned weights: a planted change is found alone, each set back as a model
built by hand, adapters read.
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tsfm_lens
from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, NAMES, archetypes, lens_of
from tsfm_lens import viz
from tsfm_lens.hooks import writers
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models import Lens, load
from tsfm_lens.models.checkpoint import unwrap_module
from tsfm_lens.models.merging import merged
from tsfm_lens.probes import weight_effects
from tsfm_lens.probes.weight_effects import _owners
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.testing import assert_close, example_case
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.weight_effects import name_change, read_weight_effects
from tsfm_lens.viz.words import num
from tsfm_lens.zoo.planted import plant

PLANTED = [
    ("seasonal-copy", "chronos"),
    ("gate", "chronos-bolt"),
    ("covariate", "chronos-2"),
    ("decoys", "moirai-2"),
]


def make_run(lens: Lens) -> Any:
    # each forecast of a token model is a rollout
    return lens.run(
        example_case(lens).batch,
        min(2 if lens.emits == "token" else 4, lens.longest_pass),
    )


def changed(lens: Lens, owner: str, size: float = 0.2) -> Lens:
    """A copy in which the weights of one component are moved at random."""
    tuned = copy.deepcopy(lens)
    generator = torch.Generator().manual_seed(0)
    named = dict(tuned.adapter.model.named_parameters())
    with torch.no_grad():
        for name, part in {
            str(item): positions for item, positions in _owners(tuned).items()
        }[owner].items():
            values = part.of(named[name])
            part.put(
                named[name],
                values + torch.randn(values.shape, generator=generator) * size,
            )
    return tuned


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_every_weight_belongs_to_one_component(name: str) -> None:
    lens = lens_of(name)
    total = {
        entry: torch.zeros_like(weight, dtype=torch.int)
        for entry, weight in lens.adapter.model.named_parameters()
    }
    for positions in _owners(lens).values():
        for item, part in positions.items():
            part.put(total[item], part.of(total[item]) + 1)
    assert all(bool((count == 1).all()) for count in total.values())


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_heads_own_weights_that_move_them(name: str) -> None:
    """A head owns the weights that move it alone."""
    base = lens_of(name)
    row = next(
        row for row in base.wiring.stacks[0].rows(0) if isinstance(row, Attention)
    )
    branch = f"{base.wiring.stacks[0].prefix}.0.{row.kind}"
    head = next(
        str(owner) for owner in _owners(base) if str(owner).endswith(f"{row.kind}.1")
    )
    first, second = (
        item.run(example_case(item).batch, 1).record([f"{branch}.hook_z"])[
            f"{branch}.hook_z"
        ]
        for item in (base, changed(base, head))
    )
    moved = [
        bool((first - second)[..., item, :].abs().max() > 0)
        for item in range(first.shape[-2])
    ]
    assert moved == [item == 1 for item in range(len(moved))]
    rest = _owners(base).get("rest", {})
    assert not [
        item
        for item in rest
        if any(
            f".{part.module}.weight" in item for part in (*row.inputs.values(), row.o)
        )
    ]


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_all_set_back_equals_the_base(name: str) -> None:
    base = lens_of(name)
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        for weight in tuned.adapter.model.parameters():
            weight.mul_(1.01)
    state = copy.deepcopy(tuned.adapter.model.state_dict())
    run = make_run(base)
    found = weight_effects(base, tuned, run)
    level = float(np.abs(run.point).max())
    back = found["cumulative_forecast"][-1]
    assert_close(found["base_forecast"], back, depth=1, magnitude=level)
    # each model by its own lens, on its own path
    tuned_run = tuned.run(run.batch, run.horizon)
    for kind, expected in (("base", run.point), ("tuned", tuned_run.point)):
        forecast = found[f"{kind}_forecast"]
        close_in_float32(forecast, expected, depth=400, magnitude=level)
    assert found.attrs["statistic"] == run.statistic
    # the tuned model is as it was
    after = tuned.adapter.model.state_dict()
    assert all(torch.equal(weight, state[item]) for item, weight in after.items())


@pytest.mark.parametrize(("mechanism", "architecture"), PLANTED)
def test_only_the_changed_component_is_found(mechanism: str, architecture: str) -> None:
    """A change planted in one component is found there alone."""
    planted = plant(mechanism, architecture, seed=3)
    base = planted.lens()
    run = evaluation_case(
        base, planted.card, series=2, noise=0.0, seed=1
    ).clean.in_one_pass()
    owned = {str(owner) for owner in _owners(base)}
    components = [
        str(writer) for writer in writers(base.wiring) if str(writer) in owned
    ]
    for target in (components[0], components[-1]):
        found = weight_effects(base, changed(base, target), run)
        assert found["component"].values.tolist() == [target]
        assert found["norm"].item() > 0
        assert_close(
            found["base_forecast"] - found["tuned_forecast"],
            found["effect"][0],
            depth=1,
            magnitude=10.0,
        )


def test_setting_back_equals_hand_built_models() -> None:
    """Each component is set back as in a model built by hand."""
    base = tsfm_lens.load("bolt-nano")
    tuned = copy.deepcopy(base)
    model = tuned.adapter.model
    attention = "decoder.block.1.layer.1.EncDecAttention"
    mlp = "decoder.block.2.layer.2.DenseReluDense.wi"
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # head 2 of four, 32 rows each
        model.get_submodule(f"{attention}.q").weight[64:96] += 0.2 * torch.randn(
            32, 128, generator=generator
        )
        model.get_submodule(f"{attention}.o").weight[:, 64:96] += 0.2 * torch.randn(
            128, 32, generator=generator
        )
        low = torch.randn(512, 2, generator=generator) @ torch.randn(
            2, 128, generator=generator
        )
        model.get_submodule(mlp).weight += 0.02 * low
    run = base.run(tsfm_lens.bundled("co2", "elnino"), 24, holdout=True)
    found = weight_effects(base, tuned, run)
    assert sorted(found["component"].values) == [
        "decoder.1.cross_attn.2",
        "decoder.2.mlp",
    ]
    # the largest share first
    assert np.diff(found["share_size"]) < 0
    by_name = found.set_index(component="component")
    assert (
        int(by_name["rank"].sel(component="decoder.2.mlp")),
        int(by_name["full_rank"].sel(component="decoder.2.mlp")),
    ) == (2, 128)
    assert int(by_name["rank"].sel(component="decoder.1.cross_attn.2")) == 32
    by_hand = copy.deepcopy(tuned)
    with torch.no_grad():
        by_hand.adapter.model.get_submodule(mlp).weight.copy_(
            base.adapter.model.get_submodule(mlp).weight
        )
    expected = by_hand.run(run.batch, 24).point
    assert_close(
        by_name["forecast"].sel(component="decoder.2.mlp"),
        expected,
        depth=1,
        magnitude=400.0,
    )
    error, before = (
        np.abs(item - run.truth).mean(-1)
        for item in (expected, found["tuned_forecast"].values)
    )
    assert_close(
        by_name["error_change"].sel(component="decoder.2.mlp"),
        np.log(error / before),
        depth=100,
    )


@pytest.mark.parametrize(
    ("name", "rollout"),
    [("chronos-nano", False), ("chronos-nano", True), ("bolt-nano", False)],
)
def test_forecasts_are_those_of_each_model(name: str, rollout: bool) -> None:
    """Forecasts and errors are those of each model by itself."""
    base = tsfm_lens.load(name)
    tuned = changed(base, "decoder.1.mlp")
    series = tsfm_lens.bundled("pedestrians", "elnino")
    samples = None
    if rollout:
        samples = 5
    run, tuned_run = (
        lens.run(series, 12, holdout=True, rollout=rollout, num_samples=samples)
        for lens in (base, tuned)
    )
    level = float(np.abs(run.point).max())
    errors = [np.abs(item.point - run.truth).mean(-1) for item in (tuned_run, run)]
    for given in (run, tuned_run):
        found = weight_effects(base, tuned, given)
        for ours, expected in (
            (found["base_forecast"], run.point),
            (found["tuned_forecast"], tuned_run.point),
            (found["forecast"][0], run.point),
            (found["cumulative_error"], errors),
        ):
            close_in_float32(ours, expected, depth=400, magnitude=level)
        change = np.log(errors[1] / errors[0])
        close_in_float32(found["base_error_change"], change, depth=10**5)
        assert found.attrs["statistic"] == run.statistic
        assert run.statistic in " ".join(read_weight_effects(found))


def without_errors(found: Any) -> list[str]:
    """Sentences without errors in the unit of the series, "142 → 139"."""
    number = r"[\d.]+(e[+−]?\d+)?"
    return [
        re.sub(f"{number} → {number}", "", text) for text in read_weight_effects(found)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "chronos-nano",
        "bolt-nano",
        pytest.param("chronos2-nano", marks=pytest.mark.exhaustive),
    ],
)
def test_units_change_no_order_or_verdict(name: str) -> None:
    """Units of a series change neither order nor verdict."""
    base = tsfm_lens.load(name)
    tuned = base
    owners = np.random.default_rng(0).permutation(list(map(str, _owners(base))))
    for owner in owners[:4]:
        tuned = changed(tuned, owner, 0.1)
    batch = tsfm_lens.bundled("pedestrians", "elnino", "co2").tail(160)

    def effects_in_units(*units: float) -> Any:
        values = (unit * value for unit, value in zip(units, batch.values, strict=True))
        run = tuned.run(replace(batch, values=tuple(values)), 4, holdout=True)
        return weight_effects(base, tuned, run)

    first = effects_in_units(1.0, 1.0, 1.0)
    other = effects_in_units(2.0**12, 2.0**-12, 1.0)
    assert other["component"].values.tolist() == first["component"].values.tolist()
    names = ["share_size", "error_change_size", "base_error_change_size"]
    for variable in (*names, "cumulative_error_change_size"):
        sizes = other[variable], first[variable]
        close_in_float32(*sizes, depth=2000, magnitude=1.0)
    assert without_errors(other) == without_errors(first)


def test_half_precision_is_compared_with_base() -> None:
    """A model in half precision is compared with its base."""
    base = tsfm_lens.load("bolt-nano")
    tuned = tsfm_lens.load("bolt-nano", dtype="bfloat16")
    with torch.no_grad():
        for name, weight in base.adapter.model.named_parameters():
            weight.copy_(dict(tuned.adapter.model.named_parameters())[name])
    run = base.run(tsfm_lens.bundled("co2"), 8)
    assert weight_effects(base, tuned, run).attrs["identical"] == 1
    tuned.adapter.model.get_submodule(
        "decoder.block.2.layer.2.DenseReluDense.wi"
    ).weight.data.mul_(1.5)
    assert weight_effects(base, tuned, run)["component"].values.tolist() == [
        "decoder.2.mlp"
    ]


def test_slopes_go_from_tuned_to_base() -> None:
    """Lines are each series' error by what is set back, and sentences say the same."""
    base = tsfm_lens.load("bolt-nano")
    tuned = changed(changed(base, "decoder.1.mlp"), "decoder.2.cross_attn.2", 0.05)
    run = base.run(tsfm_lens.bundled("pedestrians", "elnino"), 24, holdout=True)
    found = weight_effects(base, tuned, run)
    fig = found.plot()
    errors = found["cumulative_error"]
    lines = [trace for trace in fig.data if trace.mode == "lines+markers"]
    assert [line.name for line in lines] == ["pedestrians", "elnino"]
    for line, series in zip(lines, errors.transpose("series", "back"), strict=True):
        # with the last component set back, the model is the base
        expected = [*(series / series[0]).values, float(series[-1] / series[0])]
        assert_close(np.array(line.x), np.array(expected), depth=100)
        sizes = np.array(line.marker.size)[1:-1]
        assert_close(sizes, found["relative_norm"], depth=10)
    labels = fig.layout.yaxis.ticktext
    assert labels[0] == "tuned model"
    assert labels[-1] == "base model"
    words = {
        "decoder.1.mlp": "decoder layer 1, MLP",
        "decoder.2.cross_attn.2": "decoder layer 2, cross-attention head 2",
    }
    told = [words[name] for name in found["component"].values]
    assert list(labels[1:-1]) == told
    # one row for what is beyond the top
    fewer = viz.reset_slopes(found, top=1)
    assert fewer.layout.yaxis.ticktext[-1].startswith("1 more")
    assert_close(np.array(fewer.data[0].x)[-1], lines[0].x[-1], depth=1)
    # of one series both ends are told in its unit
    ends = viz.reset_slopes(found.isel(series=[1])).layout.yaxis.ticktext
    for end, label in ((0, "tuned model"), (-1, "base model")):
        assert ends[end] == f"{label}<br>{num(float(errors[end, 1]))} °C"
    tuning, text = read_weight_effects(found)[:2]
    assert tuning.startswith("Tuning ")
    # nothing says whether these steps were in the training
    for part in ("24 steps of 2 forecasts", "origin", "not known"):
        assert part in tuning
    size = np.abs(found["error_change_size"].values)
    most = int(size.argmax())
    # by itself, unlike a row of the figure, which adds to those above
    who = told[most]
    assert f"setting {who} back and leaving the others tuned" in text
    for index, unit in enumerate(("pedestrians an hour", "°C")):
        before = float(errors[0, index])
        after = before * float(np.exp(found["error_change"][most, index]))
        assert f"{num(before)} → {num(after)} {unit}" in text
        assert f"{percent(abs(after / before - 1))})" in text
    together = found["cumulative_error_change_size"].values
    count = next(n for n in range(3) if together[n] / together[-1] >= 0.5)
    first = told[0]
    half = {
        1: f"Setting {first} back undoes half",
        2: "the first 2 components, one after the other, undoes half",
    }
    assert half[count] in " ".join(read_weight_effects(found))
    found["cumulative_error_change_size"][:] = [0.0, 0.4, 1.0]
    assert half[2] in " ".join(read_weight_effects(found))
    assert name_change(found).startswith(f"{tuned.model_id} against bolt-nano: ")
    assert "2 components changed" in name_change(found)


def test_one_component_is_named_in_title_and_sentence() -> None:
    base = tsfm_lens.load("bolt-nano")
    tuned = changed(base, "decoder.1.mlp")
    run = base.run(tsfm_lens.bundled("co2"), 24, holdout=True)
    found = weight_effects(base, tuned, run)
    assert name_change(found).endswith("decoder layer 1, MLP changed")
    text = read_weight_effects(found)[1]
    assert text.startswith("Setting decoder layer 1, MLP back")
    word = "raises"
    if float(found["base_error_change"][0]) < 0:
        word = "lowers"
    assert f"{word} the error: co2" in text


def test_a_copy_shows_nothing() -> None:
    base = tsfm_lens.load("chronos2-nano")
    found = weight_effects(base, copy.deepcopy(base.native), make_run(base))
    assert found.sizes["component"] == 0
    assert read_weight_effects(found)[0].startswith("Nothing differs")
    assert "base model" in found.plot().layout.meta["title"]


@pytest.mark.parametrize(
    "name",
    ["bolt-nano", pytest.param("chronos2-nano", marks=pytest.mark.exhaustive)],
)
def test_unmerged_adapters_are_read_as_added(name: str) -> None:
    """An adapter that is not merged is read as what it adds."""
    peft = pytest.importorskip("peft")
    base = tsfm_lens.load(name)
    pipeline = copy.deepcopy(base.native)
    model = getattr(pipeline, "inner_model", None) or pipeline.model
    if name == "bolt-nano":
        model.get_input_embeddings = lambda: model.shared
    config = peft.LoraConfig(r=3, target_modules=["v"], init_lora_weights=False)
    torch.manual_seed(0)
    tuned = peft.get_peft_model(model, config)
    run = base.run(tsfm_lens.bundled("elnino"), 8)
    separate = weight_effects(base, pipeline, run)
    assert separate.attrs["adapters"] == len(merged(pipeline)[1]) > 0
    assert int(separate["rank"].max()) == 3
    text = " ".join(read_weight_effects(separate))
    assert f"{separate.attrs['adapters']} adapters" in text
    # the pipeline still has its adapters, and merging them changes nothing but rounding
    expect_error("hold an adapter beside", load, pipeline)
    tuned.merge_and_unload()
    together = weight_effects(base, pipeline, run)
    assert together.attrs["adapters"] == 0
    assert set(together["component"].values) == set(separate["component"].values)
    order = together["component"].values
    for name_of in ("forecast", "norm"):
        one, other = (
            item.set_index(component="component")[name_of].sel(component=order)
            for item in (separate, together)
        )
        close_in_float32(one, other, depth=400, magnitude=30.0)


@pytest.mark.parametrize(
    "name",
    [pytest.param("bolt-nano", marks=pytest.mark.exhaustive), "chronos2-nano"],
)
def test_pipeline_around_peft_model_is_read(name: str) -> None:
    # as Chronos2Pipeline.fit(finetune_mode="lora") returns it
    peft = pytest.importorskip("peft")
    base = tsfm_lens.load(name)
    tuned = copy.deepcopy(base.native)
    model = unwrap_module(tuned)
    if name == "bolt-nano":
        model.get_input_embeddings = lambda: model.shared
    config = peft.LoraConfig(r=3, target_modules=["v"], init_lora_weights=False)
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(model, config)
    tuned.model = wrapped
    run = base.run(tsfm_lens.bundled("elnino"), 8)
    around = weight_effects(base, tuned, run)
    inside = weight_effects(base, wrapped, run)
    assert around.attrs["adapters"] == inside.attrs["adapters"] > 0
    xr.testing.assert_equal(around["norm"], inside["norm"])
    # the caller's pipeline keeps its model, which the error's advice merges
    assert tuned.model is wrapped
    expect_error("pipeline.model.merge_and_unload()", load, tuned)
    expect_error("model.merge_and_unload()", load, wrapped)
    tuned.model = tuned.model.merge_and_unload()
    assert load(tuned).cfg.n_layers == base.cfg.n_layers


def test_models_of_other_sizes_are_refused() -> None:
    base = tsfm_lens.load("bolt-nano")
    text = "expected the same architecture"
    for other in (lens_of("chronos-bolt"), tsfm_lens.load("chronos2-nano")):
        expect_error(text, weight_effects, base, other, make_run(base))
