"""On a GPU, and in half precision, models give what they give on the CPU in single
precision, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from tiny_lenses import NAMES, archetypes, fresh
from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import measurements
from tsfm_lens.core.results import Results
from tsfm_lens.data import bundled
from tsfm_lens.hooks import Steer, writers
from tsfm_lens.hooks.native import widest_float
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.draws import check_drawable, seeded
from tsfm_lens.sweep.engine.sweeping import run_sweep
from tsfm_lens.sweep.planner.config import parse_config
from tsfm_lens.sweep.store import Store
from tsfm_lens.testing import (
    ORACLES,
    assert_close,
    check_lens,
    example_case,
    oracles,
    oracles_attention,
    oracles_ends,
)

HALF = [
    name
    for name, architecture in architectures().items()
    if "float16" in architecture.adapter.dtypes
]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
# by small steps, which half precision rounds away
STEPS = oracles_ends.gradients
QUICK = (oracles.accounting, oracles_attention.patterns, oracles_ends.ends)
# differences of what is equal, or nearly so, in exact arithmetic
ROUNDINGS = (
    "remainder",
    "completeness_error",
    "path_error",
    "identity_error",
    "rounding",
    "floor",
    "agreement",
)
# on which compression, decomposition and readouts rest; all others take long on a CPU
SOME = (
    "attribution",
    "stream_shares",
    "norm_weighted_attention",
    "kernel_regression",
    "logit_lens",
)


@GPU
@pytest.mark.parametrize("name", archetypes(NAMES))
def test_all_oracles_hold_on_a_gpu(name: str) -> None:
    results = check_lens(fresh(name).to("cuda"))
    assert all(result.passed for result in results), results


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", archetypes(HALF))
def test_oracles_hold_in_half_precision(name: str, dtype: str, device: str) -> None:
    lens = fresh(name).to(device, getattr(torch, dtype))
    # padding attends to nothing, which every kernel writes in its own way
    case = example_case(lens, n_series=1)
    if device == "cpu":
        chosen = QUICK
    else:
        chosen = [oracle for oracle in ORACLES if oracle is not STEPS]
    results = check_lens(lens, case, chosen)
    assert all(result.error <= 0.05 for result in results), results


def measured(
    lens: Lens, kinds: Iterable[str], path: np.ndarray | None = None
) -> tuple[Any, dict[str, Any]]:
    if lens.emits == "token":
        draws = {"num_samples": 4}
    else:
        draws = {}
    run = lens.run(bundled("co2"), 12, holdout=True, forced_path=path, twins=0, **draws)
    cache = Results(run)
    found = dict[str, Any]()
    for kind in kinds:
        try:
            found[kind] = cache[kind]
        except InputError as error:
            found[kind] = str(error)
    return run, found


def relative_differences(a: xr.Dataset, b: xr.Dataset) -> dict[str, float]:
    """Largest difference of each variable in units of its largest value."""
    found = {}
    for name in (
        name
        for name in a.data_vars
        if a[name].dtype.kind == "f" and not name.endswith(ROUNDINGS)
    ):
        x = a[name].values
        y = b[name].values
        found[str(name)] = float(
            np.nanmax(np.abs(x - y), initial=0.0)
            / (np.nanmax(np.abs(x), initial=0.0) or 1.0)
        )
    return found


@GPU
def test_every_measurement_equals_the_cpu_s() -> None:
    # a rise by compression is a small difference of large errors
    kinds = [kind for kind, measurement in measurements().items() if measurement.of_run]
    kinds.remove("compression_quality")
    _, expected = measured(load("bolt-nano"), kinds)
    _, found = measured(load("bolt-nano", device="cuda"), kinds)
    for kind, one in expected.items():
        assert isinstance(one, str) == isinstance(found[kind], str), (
            kind,
            one,
            found[kind],
        )
        if not isinstance(one, str):
            assert all(
                value < 1e-3
                for value in relative_differences(one, found[kind]).values()
            ), (
                kind,
                relative_differences(one, found[kind]),
            )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano"])
def test_measurements_take_half_precision(name: str, dtype: str, device: str) -> None:
    _, found = measured(load(name, device=device, dtype=dtype), SOME)
    assert not [item for item in found.values() if isinstance(item, str)]
    assert np.isfinite(found["norm_weighted_attention"]["norm"]).all()


@pytest.mark.parametrize("device", DEVICES)
def test_nan_forecasts_leave_the_device_usable(device: str) -> None:
    """A forecast without numbers leaves the device usable."""
    lens = load("chronos-nano", device=device)
    stack = lens.wiring.output_stack
    lost = Steer(
        f"{stack.prefix}.0.hook_resid_post", torch.full((stack.d_model,), np.inf)
    )
    with lens.edit(lost), pytest.raises(RuntimeError, match="probability tensor"):
        lens.forecast(bundled("co2"), 3, num_samples=2)
    variants = [Variant("lost", (lost,)), Variant.zero(writers(lens.wiring)[0])]
    found = forecast_variants(
        lens, bundled("co2"), 3, variants, num_samples=2, non_finite="keep"
    )
    assert np.isnan(found.quantiles).any(axis=(1, 2, 3)).tolist() == [True, False]


@GPU
@pytest.mark.parametrize("engine", ["single", "processes"])
def test_gpu_sweeps_find_the_cpu_rows(engine: str, tmp_path: Path) -> None:
    """A sweep on a GPU finds the rows that one on the CPU finds."""
    tables = []
    for device in ("cpu", "cuda"):
        content = {
            "name": "small",
            "models": [
                {"source": "bolt-nano", "context_length": 200, "device": device}
            ],
            "data": [
                {
                    "source": "bundled",
                    "names": ["co2", "pedestrians"],
                    "horizon": 12,
                    "windows": 3,
                }
            ],
            "variants": {
                "layers": {"sizes": [1], "parts": ["both", "mlp"]},
                "heads": {},
            },
        }
        config = parse_config(
            content if engine == "single" else {**content, "devices": [device]}
        )
        outcome = run_sweep(config, tmp_path / device, engine=engine, workers=1)
        assert not outcome.failed
        store = Store(tmp_path / device, create=False)
        tables.append(
            store.read(store.done())
            .to_pandas()
            .sort_values(["variant", "dataset", "item", "window"])
        )
    assert len(tables[0]) == len(tables[1]) > 0
    numbers = [table.select_dtypes("float").to_numpy() for table in tables]
    assert_close(numbers[1], numbers[0], depth=10_000, dtype=np.float32)


def test_invalid_logits_are_not_sampled() -> None:
    """Nothing is drawn from logits that give no probabilities."""
    head = torch.nn.Linear(2, 3)
    with head.register_forward_hook(check_drawable), torch.no_grad():
        head(torch.ones(1, 2))
        for value in (np.nan, np.inf):
            with pytest.raises(RuntimeError, match="probability tensor"):
                head(torch.full((1, 2), value))
    head(torch.full((1, 2), np.nan))


def test_seeding_leaves_other_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on one device seeds that one, and gives its generator back."""
    seeded_devices: list[object] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded_devices.append)
    before = torch.get_rng_state()
    with seeded(3, torch.device("cpu")):
        drawn = torch.rand(4)
    assert not seeded_devices
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(3)))


def test_numbers_are_as_wide_as_devices_allow() -> None:
    """Apple's GPUs have no double precision, all others have."""
    assert widest_float(torch.device("mps")) == torch.float32
    assert widest_float(torch.device("cpu")) == torch.float64
    assert widest_float(torch.device("cuda", 1)) == torch.float64
