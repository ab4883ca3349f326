"""What the libraries do without saying, and that a lens does not fall for it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tsfm_lens.errors import CheckpointError, LensError, WiringError
from tsfm_lens.hooks.residual import carry_factors
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.testing import assert_close, example_case, native_traces

Opened = Callable[[str], Lens]
TIMESFM = ["timesfm-2.5", "timesfm-2.5-transformers", "timesfm-3"]


@pytest.fixture
def saved_toto(opened: Opened, tmp_path: Path) -> Path:
    native = opened("toto-1").native
    save = architectures()["toto-1"].save
    assert save is not None
    save(native, tmp_path)
    return tmp_path


# --- the caller's data, the library's state -----------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(architectures()))
def test_the_callers_series_stay_as_they_are(opened: Opened, name: str) -> None:
    lens = opened(name)
    batch = example_case(lens).batch
    items: dict[str, list[np.ndarray]] = {}
    for group, values in zip(batch.groups, batch.values, strict=True):
        items.setdefault(group, []).append(values)
    series = [np.array(item[0] if len(item) == 1 else item) for item in items.values()]
    tensors = [torch.tensor(each) for each in series]
    kept, parts = [each.copy() for each in series], list(series)
    by_array, by_tensor = (lens.forecast(each, 3).quantiles for each in (series, tensors))
    lens.forward(series)
    np.testing.assert_array_equal(by_array, by_tensor)
    # timesfm itself appends series to the caller's list, and fills gaps in place
    assert len(series) == len(kept)
    for ours, theirs, tensor, before in zip(parts, series, tensors, kept, strict=True):
        assert ours is theirs
        np.testing.assert_array_equal(ours, before)
        np.testing.assert_array_equal(tensor, before)


def test_toto_2_leaves_no_cache_behind(fresh: Opened, multivariate: list[np.ndarray]) -> None:
    """The library hangs its key-value cache into the model at the first blockwise forecast."""
    lens = fresh("toto-2")
    plain = lens.forecast(multivariate, 24).quantiles
    lens.adapter.decode_block_size = 8  # type: ignore[attr-defined]
    blocks = lens.forecast(multivariate, 24).quantiles
    np.testing.assert_array_equal(blocks, lens.forecast(multivariate, 24).quantiles)
    assert not np.array_equal(plain, blocks)
    lens.adapter.decode_block_size = None  # type: ignore[attr-defined]
    np.testing.assert_array_equal(plain, lens.forecast(multivariate, 24).quantiles)
    assert native_traces(lens) == 0


# --- TimesFM ------------------------------------------------------------------------------------------------


def test_a_compiled_timesfm_is_refused(fresh: Opened) -> None:
    native = fresh("timesfm-2.5").native
    native.model.forward = torch.compile(native.model.forward)
    with pytest.raises(WiringError, match="torch_compile=False"):
        load(native)
    del native.model.__dict__["forward"]
    load(native)


def test_flip_invariance_runs_two_passes(opened: Opened, univariate: list[np.ndarray]) -> None:
    timesfm = pytest.importorskip("timesfm")
    native = copy.copy(opened("timesfm-2.5").native)
    passes = {}
    for flipped in (False, True):
        native.compile(timesfm.ForecastConfig(max_context=56, max_horizon=16, force_flip_invariance=flipped))
        lens = load(native, check=False)
        seen: list[int] = []
        with lens.hooks([("hook_embed", lambda value, hook, seen=seen: seen.append(1))]):
            lens.forecast(univariate, 5)
        assert lens.adapter.passes == len(seen)  # type: ignore[attr-defined]
        passes[flipped] = len(seen)
    assert passes == {False: 1, True: 2}


def test_recording_two_passes_as_one_rollout_is_refused(opened: Opened, univariate: list[np.ndarray]) -> None:
    timesfm = pytest.importorskip("timesfm")
    native = copy.copy(opened("timesfm-2.5").native)
    native.compile(timesfm.ForecastConfig(max_context=56, max_horizon=16, force_flip_invariance=True))
    with pytest.raises(LensError, match="flip"):
        load(native, check=False).run_with_cache(univariate, names_filter="hook_embed", rollout=True, horizon=5)


@pytest.mark.parametrize("name", TIMESFM)
def test_without_its_heads_an_attention_writes_nothing(opened: Opened, name: str) -> None:
    """A root-mean-square norm of nothing is nothing, so the norm after the heads brings nothing back."""
    lens = opened(name)
    case = example_case(lens)
    stack = lens.wiring.output_stack
    kinds = [row.kind for row in stack.attentions(1)]
    with torch.no_grad(), lens.ablate(*(f"1.{kind}.*" for kind in kinds)):
        _, acts = lens.run_with_cache(case.encoded, names_filter=["blocks.1.**"])
    after = ["hook_resid_mid", "hook_resid_mid2"][: len(kinds)]
    for kind, name in zip(kinds, after, strict=True):
        assert not acts[f"blocks.1.{kind}.hook_out"].any()
        assert torch.equal(acts[f"blocks.1.{name}"], acts["blocks.1.hook_resid_pre"])
    assert not torch.equal(acts["blocks.1.hook_resid_post"], acts["blocks.1.hook_resid_pre"])


# --- Toto ---------------------------------------------------------------------------------------------------


def test_toto_is_read_in_evaluation_mode(saved_toto: Path, multivariate: list[np.ndarray]) -> None:
    from toto.model.toto import Toto

    assert Toto.from_pretrained(saved_toto).training
    lens = load(saved_toto)
    assert not any(module.training for module in lens.adapter.model.modules())
    assert torch.equal(lens.forward(multivariate), lens.forward(multivariate))


@pytest.mark.parametrize("change", ["lacks", "renamed"])
def test_a_toto_with_other_tensors_is_refused(saved_toto: Path, change: str) -> None:
    """The library's loader skips what does not fit and leaves random weights in the gaps."""
    from toto.model.toto import Toto

    path, name = saved_toto / "model.safetensors", "model.transformer.layers.1.attention.wO.weight"
    tensors = load_file(path)
    tensor = tensors.pop(name)
    if change == "renamed":
        tensors[name.replace("wO", "out")] = tensor
    save_file(tensors, path)
    Toto.from_pretrained(saved_toto)
    with pytest.raises(CheckpointError, match=r"1 missing \(model\.transformer\.layers\.1\.attention\.wO\.weight\)"):
        load(saved_toto)


def test_a_toto_with_a_fused_attention_is_refused(fresh: Opened) -> None:
    native = fresh("toto-1").native
    native.model.use_memory_efficient_attention = True
    with pytest.raises(WiringError, match="use_memory_efficient_attention=False"):
        load(native)


def test_carried_writes_sum_to_the_last_stream_of_toto_2(opened: Opened) -> None:
    lens = opened("toto-2")
    stack = lens.wiring.output_stack
    with torch.no_grad():
        _, acts = lens.run_with_cache(
            example_case(lens).encoded, names_filter=["hook_embed", "**.hook_out", "**.hook_resid_post"]
        )
    factors = carry_factors(lens.adapter.model, stack)
    assert len(factors) == 1 + 2 * stack.n_layers
    # the factors by hand: each branch shrinks all that was written before it
    shrink = 1.0
    for layer in reversed(range(stack.n_layers)):
        block = lens.native.transformer.layers[layer]
        for kind, tau in (("mlp", block.mlp_tau), ("attn", block.attn_tau)):
            assert factors[layer, kind] == pytest.approx(shrink)
            shrink /= float(1 + tau**2) ** 0.5
    assert factors["embed"] == pytest.approx(shrink)
    assert shrink < 0.9
    total = sum(
        acts["hook_embed" if place == "embed" else f"blocks.{place[0]}.{place[1]}.hook_out"] * factor
        for place, factor in factors.items()
    )
    assert_close(total, acts[f"blocks.{stack.n_layers - 1}.hook_resid_post"], depth=100)


# --- Chronos-2 and Moirai -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["time_attn", "group_attn"])
def test_eager_attention_is_no_silence(fresh: Opened, multivariate: list[np.ndarray], kind: str) -> None:
    lens = fresh("chronos-2")
    model = lens.adapter.model
    # one object, shared by all attentions: set_attn_implementation would change another
    model.encoder.block[0].layer[0].self_attention.config._attn_implementation = "eager"
    with pytest.raises(WiringError, match="'sdpa' attention"):
        lens.run_with_cache(multivariate, names_filter=f"blocks.*.{kind}.hook_pattern")
    assert native_traces(lens) == 0
    lens.run_with_cache(multivariate, names_filter=f"blocks.*.{kind}.hook_out")


@pytest.mark.parametrize("name", ["moirai-1.1", "moirai-2"])
def test_moirai_with_dropout_in_attention_is_refused(fresh: Opened, name: str) -> None:
    native = fresh(name).native
    for layer in native.encoder.layers:
        layer.self_attn.attn_dropout_p = 0.1
    with pytest.raises(WiringError, match=r"attn_dropout_p = 0\.0"):
        load(native.eval())


@pytest.mark.parametrize("inside", [False, True], ids=["outermost", "component"])
def test_a_moirai_that_names_another_class_is_refused_unread(opened: Opened, tmp_path: Path, inside: bool) -> None:
    """The library calls whatever class a configuration names."""
    opened("moirai-1.1").native.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    trace = tmp_path / "called"
    own: dict[str, Any] = {"_target_": "pathlib.Path.touch", "_args_": [str(trace)]}
    config["distr_output"] = {**config["distr_output"], "components": [own]} if inside else own
    path.write_text(json.dumps(config))
    with pytest.raises(WiringError, match=r"pathlib\.Path\.touch.*uni2ts\.distribution"):
        load(tmp_path)
    assert not trace.exists()
