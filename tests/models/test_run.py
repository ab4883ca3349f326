"""A run is one forecast: made once, recorded once, and the same for everything that
looks at it.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import xarray as xr

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import probes
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series, bundled
from tsfm_lens.hooks import Noise
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.testing import assert_close
from warm import run_code

H = 6
TOKENS = ("chronos", "t5")


def make_series(lens: Lens) -> SeriesBatch:
    example = getattr(lens.adapter, "example", None)
    if example is None:
        return bundled("co2", "nile").tail(40)
    return example(1, 20)


def counted(lens: Lens, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Count the native forecasts of a lens, and its single forwards."""
    both = Mock()
    for name in ("predict", "run"):
        getattr(both, name).side_effect = getattr(lens.adapter, name)
        monkeypatch.setattr(lens.adapter, name, getattr(both, name))
    return both


def test_expected_values_count_value_tokens_only() -> None:
    """The expected value is over value tokens, however sure the model is of another."""
    lens = lens_of("chronos")
    run = lens.run(make_series(lens), H)
    first = lens.adapter.first_value_token
    with torch.no_grad():
        logits = lens.forward(run.encoded).double()
    share = torch.softmax(logits, -1)[..., first:]
    values = lens.bin_values(run.encoded)[:, None].double()
    expected = (share * values).sum(-1) / share.sum(-1)
    logits[..., 0] += 2000.0
    assert_close(run.read(logits).numpy(), expected.numpy(), depth=1000)


@pytest.mark.parametrize("name", TOKENS)
def test_path_steps_are_medians_predicted_next(
    name: str,
) -> None:
    """Every step of the path is the median of what the model predicts next."""
    lens = lens_of(name)
    run = lens.run(make_series(lens), H)
    first = lens.adapter.first_value_token
    with torch.no_grad():
        output = lens.forward(run.encoded)
    below = (run.tokens - first)[..., None].numpy()
    mass = torch.softmax(output[..., first:].double(), -1).numpy().cumsum(-1)
    # a kernel of another shape rounds the logits elsewhere
    slack = 1e-4
    half = 0.5 * mass[..., -1:]
    upto = np.take_along_axis(mass, below, -1)
    before = np.where(below > 0, np.take_along_axis(mass, below - 1, -1), 0)
    assert (before <= half + slack).all()
    assert (upto >= half - slack).all()
    values = lens.adapter.values(run.encoded).double().numpy()
    path = np.take_along_axis(values, run.tokens.numpy(), 1)
    assert_close(path, run.path, depth=8, dtype=np.float32)
    # whatever is drawn
    other = lens.run(make_series(lens), H, seed=7, num_samples=5)
    np.testing.assert_array_equal(other.path, run.path)


def test_probes_share_forecast_and_recordings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Probes of one run share its forecast and its recordings."""
    lens = lens_of("chronos-bolt")
    native = counted(lens, monkeypatch)
    run = lens.run(bundled("co2").tail(60), H, holdout=True)
    assert not native.mock_calls
    first = probes.logit_lens(run)
    second = probes.logit_lens(run)
    assert (native.predict.call_count, native.run.call_count) == (1, 1)
    assert first.identical(second)
    np.testing.assert_array_equal(run.forecast.median, first["native_median"])
    # attention that is looked into runs another kernel, whose numbers the others do not
    # get
    inside = "decoder_blocks.0.self_attn.hook_pattern"
    outside = "decoder_blocks.0.hook_resid_post"
    for names, forwards in (
        ([inside], 2),
        ([inside, outside], 3),
        ([outside], 3),
        ([inside], 3),
    ):
        activations = run.record(names)
        assert native.run.call_count == forwards
        with torch.no_grad():
            _, alone = lens.run_with_cache(run.encoded, names_filter=names)
        native.run.call_count = forwards
        assert all(torch.equal(activations[name], alone[name]) for name in names)
    assert run.select("co2") is run


def test_changed_results_leave_others_alone() -> None:
    """A result that is written to leaves the others alone."""
    run = lens_of("chronos-bolt").run(bundled("co2").tail(40), H, holdout=True)
    one = run.dataset()
    other = run.dataset()
    one["context"][:] = 0.0
    one["truth"][:] = 0.0
    one.attrs["seen"] = True
    assert other.identical(run.dataset())
    assert float(other["context"].max()) > 0


def test_runs_refuse_hooks_changed_since() -> None:
    """Hooks that come or go are refused where they would mix two models."""
    lens = lens_of("chronos-bolt")
    context = bundled("co2").tail(40)
    run = lens.run(context, H)
    with lens.ablate("decoder.0.mlp"):
        with pytest.raises(InputError, match="made under other hooks"):
            _ = run.forecast
        inside = lens.run(context, H)
        changed = inside.forecast.median
    assert not np.array_equal(changed, run.forecast.median)
    expect_error("made under other hooks", inside.record, ["decoder.hook_embed"])
    # what was made inside stays what it was
    np.testing.assert_array_equal(inside.forecast.median, changed)


@pytest.mark.parametrize("name", [*TOKENS, "chronos-bolt", "chronos-2"])
@pytest.mark.parametrize("target", ["**.hook_resid_post", "**.hook_pattern"])
def test_input_is_the_same_inside_a_block(name: str, target: str) -> None:
    """What a run reads is of the model it was made under, whenever it is asked for."""
    lens = lens_of(name)
    series = make_series(lens)
    before = lens.run(series, H)
    path = before.path
    run = lens.run(series, H)
    if not run.tokens_read:
        # its path is the forecast, which no single pass reads
        _ = run.forecast
    with torch.no_grad(), lens.edit(Noise(target, scale=9.0)):
        # the block's hooks act on what runs after the path, and not on the path
        encoded = run.encoded
        np.testing.assert_array_equal(run.path, path)
        changed = lens.forward(encoded)
        np.testing.assert_array_equal(changed, lens.forward(before.encoded))
        if run.tokens_read:
            assert not np.array_equal(lens.run(series, H).path, path)
    assert not torch.equal(changed, lens.forward(before.encoded))


def test_path_alone_is_no_idle_block() -> None:
    """A block in which only the input of a run was made has no silent hooks."""
    lens = lens_of("chronos")
    run = lens.run(make_series(lens), H)
    noise = Noise("decoder.1", scale=9.0)
    with lens.ablate("decoder.0.mlp"), lens.edit(noise):
        inside = lens.run(make_series(lens), H)
        with lens.ablate("encoder.0.mlp"):
            _ = run.path
            noisy = inside.path
    assert not np.array_equal(noisy, run.path)
    with lens.ablate("decoder.0.mlp"), lens.edit(noise):
        np.testing.assert_array_equal(lens.run(make_series(lens), H).path, noisy)
    outside = lens.run(make_series(lens), H)
    np.testing.assert_array_equal(outside.path, run.path)
    # a hook that stays belongs to no block that could be set aside
    late = lens.run(make_series(lens), H)
    lens.add_hook("decoder_blocks.0.mlp.hook_out", lambda value, hook: 0 * value)
    try:
        with pytest.raises(InputError, match="made under other hooks"):
            _ = late.path
    finally:
        lens.reset_hooks()
    with lens.ablate("decoder.0.mlp"):
        gone = lens.run(make_series(lens), H)
    with pytest.raises(InputError, match=r"at decoder_blocks.* no longer"):
        _ = gone.path
    # as many hooks as before are not the same hooks
    lens.add_hook("decoder_blocks.1.mlp.hook_out", lambda value, hook: 0 * value)
    try:
        with pytest.raises(InputError, match="made under other hooks"):
            _ = gone.path
    finally:
        lens.reset_hooks()


@pytest.mark.parametrize("name", ["chronos", "chronos-2"])
def test_lasting_hooks_are_named_with_what_takes_them_off(name: str) -> None:
    """The advice of a refusal works, also for hooks that survive ``reset_hooks()``."""
    lens = lens_of(name)
    point = f"{lens.wiring.output_stack.prefix}.1.mlp.hook_out"
    for add, advice in (
        (lens.add_hook, {}),
        (lens.add_perma_hook, {"including_permanent": True}),
    ):
        run = lens.run(make_series(lens), H)
        add(point, lambda value, hook: 0 * value)
        call = ", ".join(f"{key}={value}" for key, value in advice.items())
        try:
            message = re.escape(f"{point}, and lens.reset_hooks({call}) takes")
            with pytest.raises(InputError, match=message):
                _ = run.forecast
        finally:
            lens.reset_hooks(**advice)
        assert run.forecast.median.shape[1] == H


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_part_of_a_run_keeps_forecasts(name: str) -> None:
    """A part of a run has its forecast and path."""
    run = lens_of(name).run(bundled("co2", "nile", "elnino").tail(60), H, holdout=True)
    part = run.select(["elnino", "co2"])
    assert part.batch.ids == ("elnino", "co2")
    for values in (
        lambda run: run.forecast.quantiles,
        lambda run: run.path,
        lambda run: run.truth,
    ):
        np.testing.assert_array_equal(values(part), values(run)[[2, 0]])
    np.testing.assert_array_equal(
        part.select("co2").forecast.mean, run.forecast.mean[[0]]
    )


def test_every_horizon_holds_out_the_end() -> None:
    lens = lens_of("chronos-bolt")
    series = bundled("co2").tail(50)
    values = series.values[0]
    run = lens.run(series, 6, holdout=True)
    np.testing.assert_array_equal(run.truth[0], values[-6:])
    visible = values[:-6][-lens.adapter.context_length :]
    np.testing.assert_array_equal(run.batch.values[0], visible)
    other = run.at(4)
    np.testing.assert_array_equal(other.truth[0], values[-4:])
    assert other is run.at(4)
    assert run.at(6) is run
    shorter = run.shortened(4)
    np.testing.assert_array_equal(shorter.batch.values[0], run.batch.values[0])
    np.testing.assert_array_equal(shorter.truth, run.truth[:, :4])


def test_decoders_are_forced_along_given_values() -> None:
    """A decoder is forced along what the caller gives."""
    lens = lens_of("chronos")
    context = bundled("co2").tail(40)
    forced_path = np.full((1, H), float(context.values[0][-1]))
    run = lens.run(context, H, num_samples=2)
    led = run.following(forced_path)
    np.testing.assert_array_equal(led.path, forced_path)
    assert led.tokens is not None
    assert torch.equal(
        led.encoded.inputs["decoder_input_ids"],
        lens.encode(context, future=forced_path).inputs["decoder_input_ids"],
    )
    assert led.forecast is not None
    np.testing.assert_array_equal(
        lens.run(context, H, forced_path=forced_path).point, led.point
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"horizon": 0}, "horizon 0 is not a number of steps"),
        (
            {"horizon": 4, "truth": [[1.0, 2.0]]},
            r"truth has shape \(1, 2\), expected \(series, step\) = \(1, 4\)",
        ),
        ({"horizon": 4, "truth": [[1.0] * 4], "holdout": True}, "either truth"),
        ({"horizon": 4, "rollout": "yes"}, "rollout is 'yes'"),
        ({"horizon": 4, "forced_path": [[1.0]]}, "forced_path has shape"),
        ({"horizon": 4, "forced_path": [[1.0, np.nan, 1.0, 1.0]]}, "no numbers"),
        ({"horizon": 400, "holdout": True}, "co2"),
    ],
)
def test_wrong_arguments_are_named_before_running(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lens_of("chronos").run(bundled("co2").tail(40), **wrong)


def test_single_forwards_stop_at_one_pass() -> None:
    """Beyond one pass a single forward is refused."""
    lens = lens_of("chronos-bolt")
    run = lens.run(bundled("co2").tail(40), lens.adapter.longest_pass + 1)
    assert run.rollout
    with pytest.raises(InputError, match="cannot be explained in one pass"):
        _ = run.encoded


def test_files_hold_the_run_s_numbers(tmp_path: Path) -> None:
    run: Run = lens_of("chronos").run(
        bundled("co2", "electricity").tail(60), H, holdout=True, seed=3
    )
    with xr.open_dataset(run.to_netcdf(tmp_path / "run.nc"), engine="scipy") as data:
        np.testing.assert_array_equal(data["quantile_forecast"], run.forecast.quantiles)
        for variable in ("path", "point", "truth"):
            np.testing.assert_array_equal(data[variable], getattr(run, variable))
        assert (data.attrs["seed"], data.attrs["model"]) == (3, run.lens.model_id)
    expect_error("cannot be written", run.to_netcdf, tmp_path / "missing" / "run.nc")
    assert not list(tmp_path.rglob("*.part"))


def test_shared_recordings_change_no_probe() -> None:
    """What probes share is what each computes alone."""
    lens = load("bolt-nano")
    all_of_it = partial(probes.attribution, decompositions="all")
    shared = lens.run(bundled("co2"), 8, holdout=True)
    for probe in (probes.attribution, probes.stream_shares, all_of_it):
        xr.testing.assert_identical(
            probe(shared), probe(lens.run(bundled("co2"), 8, holdout=True))
        )
    retained = ["components", ("integrated", 1e-3), "linearised", "lens_difference"]
    assert list(shared.cache["attribution"]) == retained


@pytest.mark.parametrize("holdout", [True, False])
def test_windows_are_forecasts_from_earlier_origins(holdout: bool) -> None:
    """Each is the series cut there by hand, and what followed is its truth."""
    lens = load("bolt-nano")
    values = bundled("co2", "nile").tail(90)
    run = lens.run(values, 8, holdout=holdout, windows=3)
    assert run.batch.ids == ("co2", "nile", "co2 −8", "nile −8", "co2 −16", "nile −16")
    assert run.dataset()["item"].values.tolist() == ["co2", "nile"] * 3
    for row in range(6):
        full = values.values[row % 2]
        end = 90 - 8 * (row // 2 + holdout)
        alone = lens.run([full[:end]], 8)
        np.testing.assert_array_equal(run.batch.values[row], full[:end])
        assert_close(run.point[row], alone.point[0], depth=400, dtype=np.float32)
        if end < 90:
            truth = full[end : end + 8]
        else:
            truth = np.full(8, np.nan)
        np.testing.assert_array_equal(run.truth[row], truth)
    text = "windows=12 of 8 steps need more than 96 steps.*windows=11 is the most"
    expect_error(text, lens.run, values, 8, windows=12, holdout=True)
    expect_error("windows=0", lens.run, values, 8, windows=0)


def test_windows_know_the_covariate_s_future() -> None:
    lens = load("chronos2-nano")
    load_of = np.arange(60.0) % 7
    heat = np.cos(np.arange(66.0))
    entry = {
        "target": load_of,
        "past_covariates": {"heat": heat[:60]},
        "future_covariates": {"heat": heat[60:]},
    }
    run = lens.run([entry], 6, windows=2)
    np.testing.assert_array_equal(
        run.batch.known_future(6)[[1, 3]], [heat[60:66], heat[54:60]]
    )
    assert len(set(run.batch.groups)) == 2


def test_gaps_of_categories_are_filled_by_categories() -> None:
    """The pair of runs with a shifted season has whole categories."""
    steps = np.arange(60)
    kinds = np.array(["a", "b", "c"] * 20, dtype=object)
    kinds[[0, 7, 59]] = None
    target = np.where(steps == 9, np.nan, np.sin(steps * np.pi / 6))
    item = {"target": target, "past_covariates": {"kind": kinds}}
    lens = lens_of("chronos-2")
    pair = lens.run(as_series([item], seasonality=12), 4).shifted_pair()
    for run in pair:
        codes = run.batch.values[1]
        assert np.isin(codes, [0.0, 1.0, 2.0]).all()
        # the category before it; the first has none
        assert (codes[0], codes[7], codes[59]) == (codes[1], codes[6], codes[58])
        assert np.isfinite(run.batch.values[0]).all()


def test_twins_change_weights_only() -> None:
    """Untrained twins are the same run of other weights."""
    lens = load("bolt-nano")
    run = lens.run(bundled("co2").tail(64), 6, twins=3)
    before = run.point.copy()
    twins = [run.twin(number) for number in (0, 1, 4)]
    assert twins[0] is run.twin(0)
    assert all(
        np.abs(forecast - before).max() > 1e-3
        for forecast in [control.point for control in twins]
    )
    trained = dict(lens.adapter.model.named_parameters())
    for name, weight in twins[0].lens.adapter.model.named_parameters():
        assert torch.equal(
            weight.flatten().sort().values, trained[name].flatten().sort().values
        )
    np.testing.assert_array_equal(lens.run(bundled("co2").tail(64), 6).point, before)


@pytest.mark.parametrize("value", [48, 12, 1, "yes", None])
def test_a_holdout_is_asked_for_or_not(value: object) -> None:
    """A number of steps is no holdout, and its error says what takes it."""
    lens = lens_of("chronos-bolt")
    expect_error("horizon=.*windows=", lens.run, bundled("co2"), 4, holdout=value)


def test_series_shorter_than_the_horizon_are_noted() -> None:
    run = lens_of("chronos-bolt").run(bundled("co2").tail(3), H)
    assert any(f"only 3 steps come before the {H}" in note for note in run.batch.notes)


IMPORTS = """
import sys

for module in ("models", "models.lens", "models.opening"):
    # as where nothing else has imported tsfm_lens.models.run
    for name in [name for name in sys.modules if name.startswith("tsfm_lens")]:
        del sys.modules[name]
    exec(f"from tsfm_lens.{module} import Lens")
    assert callable(Lens.run) and callable(Lens.quick_check), module
"""


def test_lens_has_run_however_it_is_imported(tmp_path: Path) -> None:
    done = run_code(IMPORTS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
