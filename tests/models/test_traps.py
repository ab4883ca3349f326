"""What the libraries do without saying, and that a lens does not fall for it."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_lenses import fresh, lens_of
from tsfm_lens.errors import CheckpointError, LensError, WiringError
from tsfm_lens.models import architectures, load
from tsfm_lens.testing import example_case, native_traces

TIMESFM = ["timesfm-2.5", "timesfm-2.5-transformers", "timesfm-3"]


@pytest.fixture
def saved_toto(tmp_path: Path) -> Path:
    native = lens_of("toto-1").native
    save = architectures()["toto-1"].save
    assert save is not None
    save(native, tmp_path)
    return tmp_path


def test_toto_2_leaves_no_cache_behind(multivariate: list[np.ndarray]) -> None:
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


def test_a_compiled_timesfm_is_refused() -> None:
    native = fresh("timesfm-2.5").native
    native.model.forward = torch.compile(native.model.forward)
    with pytest.raises(WiringError, match="torch_compile=False"):
        load(native)
    del native.model.__dict__["forward"]
    load(native)


def test_flip_invariance_runs_two_passes_and_is_not_recorded_as_one(univariate: list[np.ndarray]) -> None:
    timesfm = pytest.importorskip("timesfm")
    native = copy.copy(lens_of("timesfm-2.5").native)
    for flipped in (False, True):
        native.compile(timesfm.ForecastConfig(max_context=56, max_horizon=16, force_flip_invariance=flipped))
        lens, seen = load(native, check=False), list[int]()
        with lens.hooks([("hook_embed", lambda value, hook, seen=seen: seen.append(1))]):
            lens.forecast(univariate, 5)
        assert lens.adapter.passes == len(seen) == 1 + flipped
    with pytest.raises(LensError, match="flip"):
        lens.run_with_cache(univariate, names_filter="hook_embed", rollout=True, horizon=5)


@pytest.mark.parametrize("name", TIMESFM)
def test_without_its_heads_an_attention_writes_nothing(name: str) -> None:
    """A root-mean-square norm of nothing is nothing, so the norm after the heads brings nothing back."""
    lens = lens_of(name)
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


def test_a_toto_with_a_fused_attention_is_refused() -> None:
    native = fresh("toto-1").native
    native.model.use_memory_efficient_attention = True
    with pytest.raises(WiringError, match="use_memory_efficient_attention=False"):
        load(native)


# --- Chronos-2 and Moirai -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["time_attn", "group_attn"])
def test_eager_attention_is_no_silence(multivariate: list[np.ndarray], kind: str) -> None:
    lens = fresh("chronos-2")
    model = lens.adapter.model
    # one object, shared by all attentions: set_attn_implementation would change another
    model.encoder.block[0].layer[0].self_attention.config._attn_implementation = "eager"
    with pytest.raises(WiringError, match="'sdpa' attention"):
        lens.run_with_cache(multivariate, names_filter=f"blocks.*.{kind}.hook_pattern")
    assert native_traces(lens) == 0
    lens.run_with_cache(multivariate, names_filter=f"blocks.*.{kind}.hook_out")


@pytest.mark.parametrize("name", ["moirai-1.1", "moirai-2"])
def test_moirai_with_dropout_in_attention_is_refused(name: str) -> None:
    native = fresh(name).native
    for layer in native.encoder.layers:
        layer.self_attn.attn_dropout_p = 0.1
    with pytest.raises(WiringError, match=r"attn_dropout_p = 0\.0"):
        load(native.eval())
