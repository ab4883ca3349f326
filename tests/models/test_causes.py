"""Refusals name the cause as it is: short forecasts, inference mode, and the rounding
of autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tsfm_lens
from homemade_model import HORIZON, Forecaster, Wired, drawn
from tsfm_lens import probes
from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.core.errors import InputError, WiringError
from tsfm_lens.data import bundled
from tsfm_lens.explain import input_attribution
from tsfm_lens.hooks import Zero
from tsfm_lens.models import Lens, Run

MODELS = ("bolt-nano", "chronos-nano", "chronos2-nano")


class Short(Wired):
    """An adapter that says that its library goes on beyond one pass, and leaves predict
    to the base class.
    """

    rollout = "refeed"


class SinglePass(Wired):
    rollout = "single"


FORECASTS: dict[str, Callable[[Lens, int], Any]] = {
    "forecast": lambda lens, steps: lens.forecast(bundled("co2"), steps),
    "run": lambda lens, steps: lens.run(bundled("co2"), steps).forecast,
    "parts": lambda lens, steps: lens.forecast(bundled("co2"), steps, batch_size=1),
    "variants": lambda lens, steps: forecast_variants(
        lens,
        bundled("co2"),
        steps,
        [Variant(str(part), (Zero(part),)) for part in lens.components("**.mlp")],
    ),
}


@pytest.mark.parametrize("way", FORECASTS)
def test_forecasts_shorter_than_asked_are_refused(way: str) -> None:
    lens = Lens(Short(drawn(Forecaster())), "short")
    with pytest.raises(
        WiringError,
        match=rf"gave {HORIZON} steps, expected {HORIZON + 8}.*rollout = 'single'",
    ):
        FORECASTS[way](lens, HORIZON + 8)
    FORECASTS[way](lens, HORIZON)
    # the advice is followed
    with pytest.raises(InputError, match="no rollout"):
        FORECASTS[way](Lens(SinglePass(drawn(Forecaster())), "whole"), HORIZON + 8)


GRADIENTS: dict[str, Callable[[Run], Any]] = {
    "integrated": lambda run: input_attribution(run, method="integrated gradients"),
    "at the input": lambda run: input_attribution(run, method="gradient × input"),
    "of activations": lambda run: run.lens.run_with_cache(
        run.encoded, incl_bwd=True, loss=torch.sum
    ),
    "hooks": lambda run: run.lens.run_with_hooks(
        run.encoded, bwd_hooks=[("**.mlp.hook_out", lambda grad, hook: None)]
    ),
}


@pytest.mark.parametrize("way", GRADIENTS)
def test_inference_mode_is_the_cause(way: str) -> None:
    run = tsfm_lens.load("bolt-nano").run(bundled("co2").tail(48), 4)
    with (
        torch.inference_mode(),
        pytest.raises(InputError, match=r"torch.inference_mode\(\); leave it"),
    ):
        GRADIENTS[way](run)
    # the advice is followed
    if way in ("integrated", "at the input"):
        with torch.no_grad():
            GRADIENTS[way](run)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in MODELS), (MODELS[0], torch.float16)],
)
def test_rounding_of_autocast_is_accepted(name: str, dtype: torch.dtype) -> None:
    """Rounding under autocast is no wrong wiring."""
    with torch.autocast("cpu", dtype):
        lens = tsfm_lens.load(name)
        run = lens.run(bundled("co2"), 4)
        assert np.isfinite(run.attribute()["attribution"]).all()
        probes.logit_lens(run)
        activations = lens.run_with_cache(run.encoded)[1]
        activations.decompose_resid()
    # what was recorded under it stays as coarse
    writes = activations.decompose_resid()
    assert bool(writes.isfinite().all())
    # an edit of the stream itself is still no rounding
    stream = "decoder_blocks.1.hook_resid_post"
    if "2" in name:
        stream = "blocks.1.hook_resid_post"
    with (
        torch.autocast("cpu", dtype),
        lens.hooks([(stream, lambda value, hook: 3 * value)]),
    ):
        edited = lens.run_with_cache(run.encoded)[1]
        with pytest.raises(WiringError, match="do not sum"):
            edited.decompose_resid()
