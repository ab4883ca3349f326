"""What compression did, against counting and formulas by hand; what it costs, and what
heals it; the command.
"""

from __future__ import annotations

import copy
import json
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import stdtr
from sklearn.metrics import mean_pinball_loss
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import compress, data, viz
from tsfm_lens.cli import app
from tsfm_lens.cli.compress import _noted_warnings
from tsfm_lens.compress import Compressed
from tsfm_lens.core.errors import InputError
from tsfm_lens.models import load
from tsfm_lens.sweep.planner.recipes import read_recipe, to_entries
from tsfm_lens.sweep.planner.variants import VariantPlanner
from tsfm_lens.testing import assert_close, example_case

SERIES = "bundled:co2,sunspots,elnino"


def test_smallest_harmless_model_is_chosen() -> None:
    """The smallest harmless model is chosen and drawn."""
    rise = np.array([[0.2, 0.0], [0.03, -0.01]])
    high = np.array([[0.3, 0.008], [0.05, 0.005]])
    columns = {
        "parameters": [[0.6, 0.8], [0.5, 0.8]],
        "mase_rise": rise,
        "mase_rise_high": high,
    }
    columns |= {
        "mase_rise_low": 2 * rise - high,
        "harm_p": [[1.0, 0.02], [0.03, 0.001]],
    }
    coords = {"method": ["svd", "weighted"], "keep": [0.25, 0.5]}
    attrs = {"kind": "compression", "model": "planted", "n_series": 5}
    ds = xr.Dataset(
        {name: (("method", "keep"), values) for name, values in columns.items()},
        coords,
        attrs,
    )
    chosen = compress.measure.smallest_harmless(ds)
    assert chosen["choice"] == "weighted, 0.5 kept"
    none = compress.measure.smallest_harmless(ds.assign(harm_p=ds["harm_p"] + 0.025))
    assert none["choice"] == ""
    assert "nearest is weighted, 0.5 kept" in none["why"]
    # too few series: nothing is known
    assert not compress.measure.smallest_harmless(
        ds.assign(harm_p=ds["harm_p"] * np.nan)
    )["choice"]
    line = viz.plot(ds.assign_attrs(chosen)).data[1]
    assert_close(line.y, 100 * ds["mase_rise"].values[1], depth=10)
    above = ds["mase_rise_high"] - ds["mase_rise"]
    assert_close(line.error_y.array, 100 * above.values[1], depth=10)


def test_choice_corrects_for_many_models() -> None:
    """The choice is corrected for the number of models."""
    lens = lens_of("chronos-bolt")
    run = lens.run(seasons(), 6, holdout=True)
    calibration = compress.calibration_run(run)
    curve = compress.pareto(run, calibration, [0.2, 0.4, 0.6, 0.8], methods=["svd"])
    smaller = [
        compress.compressed(calibration, keep, method="svd")[0]
        for keep in (0.2, 0.4, 0.6, 0.8)
    ]
    logs = [
        np.log1p(compress.quality(run, item)["mase_rise"].values) for item in smaller
    ]
    raw = [
        stdtr(7, (log.mean() - np.log(1.01)) / (log.std(ddof=1) / 8**0.5))
        for log in logs
    ]
    order = np.argsort(raw)
    expected = np.minimum(
        np.maximum.accumulate(np.array(raw)[order] * [4, 3, 2, 1]), 1.0
    )
    assert_allclose(curve["harm_p"].values[0][order], expected)


def test_other_sources_measure() -> None:
    names = set(data.bundled_names())
    chosen, rest = compress.measure.split_sources(data.bundled("unemployment", "co2"))
    assert chosen.ids == ("unemployment", "co2")
    # of one publisher
    assert names - set(rest.ids) == {
        "co2",
        "unemployment",
        "inflation",
        "retail_jobs",
        "leisure_jobs",
    }
    chosen, rest = compress.measure.split_sources(data.bundled())
    assert (set(chosen.ids) | set(rest.ids), set(chosen.ids) & set(rest.ids)) == (
        names,
        set(),
    )
    assert (
        ("elnino" in chosen.ids)
        == ("seattle_heat" in chosen.ids)
        == ("sunspots" in chosen.ids)
    )


def test_errors_are_those_of_the_forecasts() -> None:
    lens = lens_of("chronos-bolt")
    batch = example_case(lens).batch
    run = lens.run(batch.select([1, 2, 3]), 6, holdout=True)
    other, _ = compress.compressed(compress.calibration_run(run), 0.2, method="svd")
    found = compress.quality(run, other)
    truth = run.truth
    # a season of 1
    unit = np.array([np.abs(np.diff(series)).mean() for series in run.batch.values])
    forecasts = [item.forecast(run.batch, 6) for item in (lens, other)]
    mase = np.stack([np.abs(f.median - truth).mean(-1) / unit for f in forecasts])
    assert_close(found["mase"], mase, depth=100)
    for row, forecast in enumerate(forecasts):
        loss = [
            2 * mean_pinball_loss(true, quantile, alpha=level) * truth[0].size
            for true, quantiles in zip(truth, forecast.quantiles, strict=True)
            for level, quantile in zip(forecast.levels, quantiles, strict=True)
        ]
        wql = np.reshape(loss, (3, -1)).mean(-1) / np.abs(truth).sum(-1)
        assert_close(found["wql"][row], wql, depth=100)
    ratio = mase[1] / mase[0]
    assert_close(found["mase_rise"], ratio - 1, depth=100, magnitude=float(ratio.max()))
    estimate = 1 + float(found["mase_rise_estimate"])
    assert_close(estimate, np.exp(np.log(ratio).mean()), depth=100)
    assert found["mase_rise_low"] < estimate - 1 < found["mase_rise_high"]
    assert "overlap" not in found
    expect_error("no truth", compress.quality, lens.run(batch, 6), other)


def test_overlap_and_perplexity_of_token_model() -> None:
    """Overlap and perplexity of a token model are those of their definitions."""
    lens = lens_of("chronos")
    batch = example_case(lens).batch.select([1, 2, 3])
    run = lens.run(batch, 6, holdout=True, num_samples=2)
    assert float(compress.quality(run, lens)["overlap"]) == 1.0
    other, _ = compress.compressed(compress.calibration_run(run), 0.1, method="svd")
    found = compress.quality(run, other)
    encoded = lens.encode(run.batch, future=run.truth)
    truth = lens.adapter.tokenize(torch.as_tensor(run.truth), encoded)
    with torch.no_grad():
        logits = torch.stack(
            [item.adapter.run(encoded.inputs).double() for item in (lens, other)]
        )
    best = logits.topk(10).indices.flatten(1, 2).tolist()
    shared = [len({*a} & {*b}) / len({*a} | {*b}) for a, b in zip(*best, strict=True)]
    assert float(found["overlap"]) == pytest.approx(np.mean(shared))
    assert 0 < float(found["overlap"]) < 1
    losses = [cross_entropy(logit.flatten(0, 1), truth.flatten()) for logit in logits]
    assert_close(found["log_perplexity"], torch.stack(losses), depth=100)


def test_calibration_sees_nothing_of_the_truth() -> None:
    lens = lens_of("chronos")
    batch = example_case(lens).batch.select([1, 2, 3])
    run = lens.run(batch, 6, holdout=True)
    earlier = compress.calibration_run(run, windows=2)
    assert run.full_batch is not None
    for row, full in enumerate([*run.full_batch.values] * 2):
        origin = len(full) - 6 * (2 + row // 3)
        assert_array_equal(
            earlier.batch.values[row], full[:origin][-len(earlier.batch.values[row]) :]
        )
        assert_array_equal(earlier.path[row], full[origin : origin + 6])
    # both windows of a series are on one side of every fold
    parts = compress.moments.folds(earlier)
    assert [len(part.batch) for part in parts] == [4, 2]
    crossed = compress.moments.crossed(earlier, ["encoder_blocks.0.self_attn.q"])
    assert [part.batch.ids for part, _ in crossed] == [
        parts[0].batch.ids[::2],
        parts[1].batch.ids[:1],
    ]
    # series too short to go back are taken as they are, and cannot be both sides where
    # there is one
    short = lens.run(batch.tail(15), 6, holdout=True)
    assert compress.calibration_run(short).batch.lengths == short.batch.lengths
    expect_error(
        r"1 series or windows calibrate, .* at least 2",
        compress.compressed,
        short.select([0]),
        0.25,
    )
    with pytest.warns(
        UserWarning,
        match=(
            r"see fewer vectors than they have columns .*3 forecast origins calibrate"
        ),
    ):
        compress.compressed(short, 0.25, method="weighted")


def test_ranks_by_one_number() -> None:
    lens = lens_of("chronos-bolt")
    name = "decoder_blocks.0.cross_attn.q"
    weight = (
        lens.adapter.model.get_submodule(compress.matrices(lens)[name].path)
        .weight.detach()
        .numpy()
    )
    values = np.linalg.svd(weight.astype(float), compute_uv=False)
    assert (
        compress.chosen_ranks(lens, epsilon=0.3)[name]
        == (values / values[0] > 0.3).sum()
    )
    by_head = [
        np.linalg.svd(block.astype(float), compute_uv=False)
        for block in np.split(weight, 4)
    ]
    expected = max((item / item[0] > 0.3).sum() for item in by_head)
    assert compress.chosen_ranks(lens, epsilon=0.3, by_head=True)[name] == expected
    assert compress.chosen_ranks(lens, rank=99)[name] == 32
    refused = [{"epsilon": 1.0}, {"epsilon": -0.1}, {"rank": 0}, {"keep": 1.5}]
    for numbers in ({}, {"keep": 0.5, "rank": 2}, *refused):
        expect_error(
            "expected" if numbers in refused else "exactly one",
            compress.chosen_ranks,
            lens,
            **numbers,
        )


def run_command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compress", "bolt-nano", *arguments])


@pytest.mark.usefixtures("models_timed_once")
def test_command_writes_and_describes_smaller_model(
    tmp_path: Path,
) -> None:
    """The command writes a smaller model and says what it did."""
    out = tmp_path / "small"
    figure = tmp_path / "forecasts.html"
    options = f"--keep 0.25 --method weighted --horizon 12 --figure {figure} --json"
    reported = run_command("--data", SERIES, "--out", str(out), *options.split())
    assert reported.exit_code == 0, reported.output
    found = json.loads(reported.stdout)
    full, smaller = (found["numbers"][name] for name in ("whole", "compressed"))
    assert compress.sizes(load(out)) == smaller
    assert smaller["attention"] / full["attention"] == 0.5
    assert found["ratio"]["ranks"] == 0.25
    assert not found["native"]
    assert "MASE" in Path(found["figure"]).read_text()
    held = 4 * smaller["all"]
    for row in found["cost"]:
        original_bytes, other_bytes = row["weight_bytes"]
        assert other_bytes - original_bytes == held - found["bytes"]["whole"]
    # tied embeddings aside, the file holds what the model does, and a header
    assert held <= found["file_bytes"] <= held + 2**16
    assert found["mase_rise"][1] < found["mase_rise"][0] < found["mase_rise"][2]


@pytest.mark.usefixtures("models_timed_once")
def test_command_removes_what_recipe_lists(tmp_path: Path) -> None:
    """The command takes out what a recipe lists."""
    out = tmp_path / "small"
    gone = "encoder.0.mlp"
    options = f"--without recipe:bolt-60 --without {gone} --horizon 12 --json"
    reported = run_command("-d", SERIES, "-o", str(out), *options.split())
    assert reported.exit_code == 0, reported.output
    lens = load("bolt-nano")
    again = load(out)
    planner = VariantPlanner(lens, "bolt-nano")
    (entry,) = to_entries(read_recipe("bolt-60"), planner, scale=True)
    series = [np.sin(np.arange(100) / 3)]
    with lens.ablate(*entry.spec.components, gone):
        ablated = lens.forecast(series, 12).median
    close_in_float32(again.forecast(series, 12).median, ablated, depth=300)
    numbers = json.loads(reported.stdout)["numbers"]
    for kind in ("mlp", "attention"):
        assert numbers["compressed"][kind] < numbers["whole"][kind]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--keep 0.25", 2, "--out"),
        ("--keep 0.25 --rank 3 -o x", 2, "one of"),
        ("--pareto --keep 0.25", 2, "--pareto"),
        ("--epsilon 1 -o x", 1, "epsilon is 1"),
    ],
)
def test_the_command_refuses_what_cannot_be(
    options: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    reported = run_command("-d", "bundled:co2", *options.split())
    assert reported.exit_code == code
    assert message in " ".join(reported.output.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_counted_operations_and_weights_agree(name: str) -> None:
    """Operations and weights are those of counting."""
    lens = lens_of(name)
    key = "encoder_blocks.0.self_attn.q"
    smaller = compress.factorised(lens, {key: 1})
    found = compress.cost(lens, smaller, shapes=[(2, 32), (1, 10**6)], rounds=1)
    assert found["shape"].values.tolist() == [
        "2 x 32",
        f"1 x {lens.adapter.context_length}",
    ]
    form = compress.matrices(lens)[key].form()
    saved = form.numbers - form.factors(1)
    full, other = (found.sel(model=model) for model in ("whole", "other"))
    assert (full["weight_bytes"] - other["weight_bytes"]).values.tolist() == [
        4 * saved
    ] * 2
    # every token passes the matrix once: two operations a number
    operations = full["operations"] - other["operations"]
    assert (operations % (2 * saved) == 0).all()
    assert (operations > 0).all()
    assert (found["operation_ratio"] < 1).all()
    assert (found["peak_bytes"] > found["weight_bytes"]).all()
    assert (found["time_ratio_low"] <= found["time_ratio"]).all()
    for shapes, rounds in (([], 1), ([(0, 5)], 1), ([(1, -2)], 1), ([(1, 8)], 0)):
        expect_error(
            "positive", compress.cost, lens, lens, shapes=shapes, rounds=rounds
        )


def seasons(count: int = 8) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        np.sin(np.arange(120) * 2 * np.pi / (6 + i)) + 0.1 * rng.standard_normal(120)
        for i in range(count)
    ]


def test_healing_trains_only_compressed_parts() -> None:
    """Healing trains what is compressed and nothing else."""
    # random weights forecast nothing, which no few steps mend
    lens = load("bolt-nano", check=False)
    run = lens.run(seasons(), 12, holdout=True)
    smaller, _ = compress.compressed(run, 0.1, method="svd")
    before = copy.deepcopy(smaller.adapter.model.state_dict())
    healed = compress.healed(smaller, run, steps=25, rows=8, learning_rate=3e-3)
    first, second = (
        np.abs(item.forecast(run.batch, 12).median - run.truth).mean()
        for item in (smaller, healed)
    )
    assert second < 0.9 * first
    state = healed.adapter.model.state_dict()
    held = {
        path
        for path, layer in healed.adapter.model.named_modules()
        if isinstance(layer, Compressed)
    }
    changed = {name for name in state if not torch.equal(state[name], before[name])}
    assert {name.rpartition(".")[0] for name in changed} <= held
    assert changed >= {f"{path}.up" for path in held if "decoder" not in path}
    torch.testing.assert_close(
        smaller.adapter.model.state_dict(), before, rtol=0, atol=0
    )
    assert all(part.requires_grad and part.grad is None for part in healed.parameters())


def test_token_models_heal_by_own_loss() -> None:
    lens = lens_of("chronos")
    run = lens.run(seasons(), 8, holdout=True, num_samples=1)
    smaller = compress.prune(lens, ["decoder.1.mlp", "encoder.0.self_attn.1"])
    healed = compress.healed(smaller, run, steps=20, rows=8, learning_rate=1e-2)
    before, after = (
        compress.quality(run, item)["log_perplexity"].values[1]
        for item in (smaller, healed)
    )
    assert after < before


def test_unhealable_models_are_refused() -> None:
    """What cannot be healed is refused, and Ctrl-C leaves the models alone."""
    lens = lens_of("chronos-bolt")
    run = lens.run(seasons(2), 8)
    smaller = compress.factorised(lens, {"encoder_blocks.0.self_attn.q": 2})
    for other, steps, text in (
        (lens, 9, "nothing to heal"),
        (smaller, 0, "steps=0"),
        (lens_of("chronos-2"), 9, "no loss to heal 'chronos-2'"),
    ):
        expect_error(text, compress.healed, other, run, steps=steps)
    before = copy.deepcopy(smaller.adapter.model.state_dict())

    def interrupt(done: int, _: int) -> None:
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        compress.healed(smaller, run, steps=9, rows=2, progress=interrupt)
    torch.testing.assert_close(
        smaller.adapter.model.state_dict(), before, rtol=0, atol=0
    )


def test_errors_hide_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """What was warned of before an error is printed once, with the option's name."""

    @_noted_warnings()
    def fail() -> None:
        for _ in range(2):
            warnings.warn("give windows=… of 3", stacklevel=1)
        raise InputError("later")

    expect_error("later", fail)
    notes = capsys.readouterr().err.splitlines()
    assert notes == ["note: give --calibration-windows of 3"]
