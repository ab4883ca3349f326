"""What the libraries do without saying, and that a lens does not fall for it."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from refusals import expect_error
from tiny_lenses import fresh, lens_of
from tsfm_lens.models import architectures, load
from tsfm_lens.testing import native_traces

# --- TimesFM


def test_a_compiled_timesfm_is_refused() -> None:
    native = fresh("timesfm-2.5").native
    native.model.forward = torch.compile(native.model.forward)
    expect_error("is compiled", load, native)
    del native.model.__dict__["forward"]
    load(native)


def test_flip_invariance_is_never_recorded(
    univariate: list[np.ndarray],
) -> None:
    """Flip invariance runs two passes and is not recorded as one."""
    timesfm = pytest.importorskip("timesfm")
    native = copy.copy(lens_of("timesfm-2.5").native)
    for flipped in (False, True):
        native.compile(
            timesfm.ForecastConfig(
                max_context=56, max_horizon=16, force_flip_invariance=flipped
            )
        )
        lens = load(native, check=False)
        seen = list[int]()
        with lens.hooks(
            [("hook_embed", lambda value, hook, seen=seen: seen.append(1))]
        ):
            lens.forecast(univariate, 5)
        assert lens.adapter.passes == len(seen) == 1 + flipped
    expect_error(
        "flip",
        lens.run_with_cache,
        univariate,
        names_filter="hook_embed",
        rollout=True,
        horizon=5,
    )


# --- Toto


def test_toto_is_read_in_evaluation_mode(
    tmp_path: Path, multivariate: list[np.ndarray]
) -> None:
    native = lens_of("toto-1").native
    from toto.model.toto import Toto

    architectures()["toto-1"].save(native, tmp_path)
    assert Toto.from_pretrained(tmp_path).training
    lens = load(tmp_path)
    assert not any(module.training for module in lens.adapter.model.modules())
    assert torch.equal(lens.forward(multivariate), lens.forward(multivariate))


# --- Chronos-2 and Moirai


@pytest.mark.parametrize("kind", ["time_attn", "group_attn"])
def test_eager_attention_is_no_silence(
    multivariate: list[np.ndarray], kind: str
) -> None:
    lens = fresh("chronos-2")
    model = lens.adapter.model
    # one object, shared by all attentions: set_attn_implementation would change another
    model.encoder.block[0].layer[0].self_attention.config._attn_implementation = "eager"
    expect_error(
        "'sdpa' attention",
        lens.run_with_cache,
        multivariate,
        names_filter=f"blocks.*.{kind}.hook_pattern",
    )
    assert native_traces(lens) == 0
    lens.run_with_cache(multivariate, names_filter=f"blocks.*.{kind}.hook_out")


@pytest.mark.parametrize("name", ["moirai-1.1", "moirai-2"])
def test_dropout_in_moirai_attention_is_refused(name: str) -> None:
    native = fresh(name).native
    for layer in native.encoder.layers:
        layer.self_attn.attn_dropout_p = 0.1
    expect_error(r"attn_dropout_p = 0\.0", load, native.eval())
