"""Parroting by heads against forecasts made without them, one at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contrasted import few_draws, series_for
from tiny_lenses import fresh, lens_of
from tsfm_lens.data import as_series, bundled
from tsfm_lens.errors import LensError
from tsfm_lens.models import architectures
from tsfm_lens.probes import context_parroting, head_parroting, lag_attention
from tsfm_lens.testing import assert_close

NAMES = sorted(architectures())
H = 4


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_those_of_forecasts_without_the_head(name: str) -> None:
    lens = lens_of(name)
    batch = as_series(series_for(lens))
    draws = few_draws(lens)
    truth = np.tile(batch.values[0][:H], (len(batch), 1))
    run = lens.run(batch, H, truth=truth, **draws)
    found = head_parroting(run, motif=5)
    context = batch.values[0]
    assert found.sizes["layer"] * found.sizes["head"] > 1
    lag, spread = int(found["lag"][0]), context.std()
    targets = {
        "copy_error": np.resize(context[-lag:], H),
        "parrot_error": found["parrot"].values[0],
        "truth_error": truth[0],
    }
    layer, head = str(found["layer"].values[-1]), 1
    prefix = f"{lens.wiring.output_stack.name}.".lstrip(".")
    plain, without = found["forecast"].values[0], None
    with lens.ablate(f"{prefix}{layer}.{found.attrs['attention']}.{head}"), torch.no_grad():
        outputs = lens.forward(run.encoded)
    if run.tokens_read:
        first = lens.adapter.first_value_token
        mass = torch.softmax(outputs[..., first:], -1).double().numpy()[0]
        values = lens.adapter.values(run.encoded)[0, first:].double().numpy()
        without = (mass * values).sum(-1) / mass.sum(-1)
    else:
        without = outputs.double().numpy()[0][np.argmin(np.abs(np.array(lens.adapter.levels) - 0.5)), :H]
    for error, target in targets.items():
        before, after = (np.abs(one - target).mean() / spread for one in (plain, without))
        assert_close(float(found[error][0]), before, depth=100, dtype=np.float32)
        change = float(found[f"{error}_change"].sel(layer=layer, head=head)[0])
        assert_close(change, after - before, depth=100, magnitude=before, dtype=np.float32)
    looked = lag_attention(lens.run(batch.select(0), H, **draws), lag)
    np.testing.assert_allclose(found["mass"].isel(series=0), looked["mass"])
    assert float(found["chance"][0]) == float(looked["chance"])


def test_a_head_that_writes_nothing_changes_nothing() -> None:
    lens = fresh("chronos-bolt")
    width = lens.wiring.output_stack.d_head
    with torch.no_grad():
        lens.adapter.model.get_submodule("decoder.block.1.layer.1.EncDecAttention.o").weight[:, width : 2 * width] = 0
    found = head_parroting(lens.run(bundled("co2", "elnino").tail(60), 8))
    change = found["copy_error_change"]
    assert_close(
        change.sel(layer="1", head=1), 0, depth=16, magnitude=float(found["copy_error"].max()), dtype=np.float32
    )
    assert float(np.abs(change.sel(layer="1", head=0)).max()) > 1e-4


def test_the_lag_is_that_of_the_whole_forecast() -> None:
    lens, batch = lens_of("chronos-bolt"), bundled("co2", "elnino").tail(60)
    found, whole = head_parroting(lens.run(batch, 8)), context_parroting(lens.run(batch, 8))
    np.testing.assert_array_equal(found["lag"], whole["best_lag"])
    np.testing.assert_allclose(found["parrot"], whole["parrot"])
    assert_close(found["parrot_error"], whole["parrot_error"], depth=100, dtype=np.float32)
    # the lag curve's own minimum, up to the 1 % by which a shorter lag is preferred
    assert_close(found["copy_error"], whole["copy_error"], depth=100, dtype=np.float32)
    given = head_parroting(lens.run(batch, 8), lag=12)
    assert (given["lag"] == 12).all()
    np.testing.assert_allclose(given["copy"][0], batch.values[0][-12:][:8])


def test_what_cannot_be_parroted_is_unknown_or_refused() -> None:
    lens = lens_of("chronos-bolt")
    flat = head_parroting(lens.run([np.ones(40), bundled("co2").tail(40).values[0]], 8))
    for name in ("lag", "chance", "copy_error", "mass", "copy_error_change"):
        assert np.isnan(flat[name].isel(series=0)).all()
        assert np.isfinite(flat[name].isel(series=1)).all()
    run = lens.run(bundled("co2").tail(40), 8)
    options = ({"lag": 40}, {"motif": 1}, {"kind": "time_attn"})
    for option, words in zip(options, ("lag is 40, expected 1 to 39", "motif is 1", "cross_attn"), strict=True):
        with pytest.raises(LensError, match=words):
            head_parroting(run, **option)
