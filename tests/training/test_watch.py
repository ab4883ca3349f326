"""The watch: a training does not notice it, its record survives kills and resumes, and
wrong use is told.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from numpy.testing import assert_array_equal
from torch import Tensor, nn

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.training import (
    Plan,
    Training,
    Watch,
    attention_measures,
    read_watch,
    sharpness,
    together,
)
from tsfm_lens.training.watch import callback

LENGTH = 12


def seed(number: int) -> None:
    """Start all generators over."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


class Net(nn.Module):
    """Everything that a look could disturb: dropout, running means, spectral
    normalisation, attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.utils.parametrizations.spectral_norm(nn.Linear(1, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(LENGTH)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        mixed, self_pattern = self.attention(x, x, x, average_attn_weights=False)
        self.pattern = self_pattern.detach()
        return self.head(self.drop(self.norm(x + mixed)))


class Case:
    """A training whose every step draws from all generators, and what a watch may look
    at.
    """

    name = "net"
    identity = "{}"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(5)
        self.fixed = [torch.randn(6, LENGTH, 1, generator=generator) for _ in range(3)]

    @property
    def losses(self) -> list[Callable[[], Tensor]]:
        return [
            lambda x=x: (self.model(x) - x.roll(1, 1)).square().mean()
            for x in self.fixed
        ]  # type: ignore[misc]

    def patterns(self) -> dict[str, Tensor]:
        self.model(self.fixed[0])
        return {"0": self.model.pattern}

    def loss(self, step: int) -> Tensor:
        x = torch.randn(6, LENGTH, 1) + random.random() + np.random.rand()  # noqa: NPY002
        return (self.model(x) - x.roll(1, 1)).square().mean()

    def evaluate(self) -> dict[str, float]:
        return {}

    def step(self, step: int) -> float:
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def watch(self, out: Path | None = None, **options: Any) -> Watch:
        how = {
            "every": 2,
            "loss": self.losses,
            "patterns": self.patterns,
            "products": 4,
            "out": out,
        }
        return Watch(self.model, **{**how, **options})

    def state(self) -> list[bytes]:
        """Bits of weights, buffers, gradients and generators."""
        parts = [*self.model.parameters(), *self.model.buffers()]
        parts += [
            weight.grad for weight in self.model.parameters() if weight.grad is not None
        ]
        modes = [module.training for module in self.model.modules()]
        rest = str((modes, random.getstate(), np.random.get_state())).encode()  # noqa: NPY002
        return [
            part.detach().numpy().tobytes() for part in (*parts, torch.get_rng_state())
        ] + [rest]


def test_watching_changes_no_bit_of_training(tmp_path: Path) -> None:
    """A training with a watch is the one without, bit for bit."""
    states = []
    for watched in (False, True):
        seed(1)
        case = Case()
        if watched:
            watch = case.watch(tmp_path, snapshots=3)
        else:
            watch = None
        for step in range(6):
            loss = case.step(step)
            before = case.state()
            if watch is not None:
                watch(step, loss=loss)
            assert case.state() == before
        states.append(case.state())
    assert states[0] == states[1]
    data = read_watch(tmp_path)
    assert data["step"].values.tolist() == [0, 2, 4]
    assert data["snapshot"].values.tolist() == [0, 3]
    assert np.isfinite(data["sharpness"]).all()


def drawing(model: nn.Module, generator: torch.Generator) -> Callable[[], Tensor]:
    """A loss on a batch and with a mask that a generator of one's own draws."""

    def loss() -> Tensor:
        x = torch.randn(6, LENGTH, 1, generator=generator)
        mask = torch.empty(6, LENGTH, 1).bernoulli_(0.8, generator=generator)
        return ((model(x) - x.roll(1, 1)) * mask).square().mean()

    return loss


def test_watch_restores_the_users_generators() -> None:
    """A watch leaves the user's random generators where they stood."""
    case = Case()
    generator = torch.Generator().manual_seed(7)
    generator_of_sums = torch.Generator().manual_seed(8)

    def norm() -> dict[str, float]:
        order = torch.randperm(4, generator=generator_of_sums)
        return {
            "norm": float(
                next(case.model.parameters()).detach().flatten()[order].norm()
            )
        }

    watch = case.watch(
        loss=[drawing(case.model, generator)] * 3,
        measures=["sharpness", "gradient_noise", "attention", norm],
        every=1,
    )
    before = generator.get_state(), generator_of_sums.get_state()
    case.step(0)
    seen = watch(0)
    assert torch.equal(generator.get_state(), before[0])
    assert torch.equal(generator_of_sums.get_state(), before[1])
    # batches that are drawn one after the other differ
    assert seen is not None
    assert seen["values"]["gradient_variance"] > 0
    # and every product with the Hessian is on the same ones
    state = generator.get_state()
    measured = sharpness([drawing(case.model, generator)], case.model, steps=8)
    fixed = sharpness(
        [lambda: drawing(case.model, torch.Generator().set_state(state))()],
        case.model,
        steps=8,
    )
    assert measured.largest == fixed.largest


def test_record_holds_the_measured_values(tmp_path: Path) -> None:
    """The record holds what the measures give."""
    case = Case()
    watch = case.watch(tmp_path, snapshots=4, products=6)
    case.step(0)
    row = watch(0, loss=torch.tensor(0.5))
    assert row is not None
    case.model.eval()
    with torch.no_grad():
        pattern = case.patterns()["0"]
    measures = {
        name: value.mean(0) for name, value in attention_measures(pattern).items()
    }
    expected = sharpness(case.losses, case.model, steps=6)
    assert watch(1) is None
    for data in (watch.dataset(), read_watch(tmp_path)):
        assert data.attrs["kind"] == "training_watch"
        assert data["loss"].item() == 0.5
        assert data["sharpness"].item() == expected.largest
        assert data["lowest_curvature_residual"].item() == expected.smallest_residual
        for name, value in measures.items():
            assert_array_equal(data[name].sel(step=0, layer="0"), value)
        assert data["entropy"].attrs["units"] == "nats"
        assert data["n_keys"].values.tolist() == [LENGTH]
        assert_array_equal(
            data["pattern"].sel(snapshot=0, layer="0", input=0), pattern[0]
        )
    # whatever is read again is the same, types of its attributes too
    xr.testing.assert_identical(watch.dataset(), read_watch(tmp_path))
    watch.dataset().to_netcdf(tmp_path / "watch.nc", engine="scipy")


@pytest.mark.parametrize(
    "torn", [b"", b'{"step": 4, "va', b'{"step": 4, "values": {}, "attention": {}}']
)
def test_resumed_watch_equals_undisturbed_one(torn: bytes, tmp_path: Path) -> None:
    """A resumed watch has the record of an undisturbed one."""

    def train(case: Case, watch: Watch, start: int, stop: int) -> None:
        for step in range(start, stop):
            watch(step)
            seed(step)
            case.step(step)

    full = Case()
    parted = Case()
    train(full, full.watch(tmp_path / "whole", snapshots=2), 0, 7)
    first = parted.watch(tmp_path / "parted", snapshots=2)
    train(parted, first, 0, 3)
    state = copy.deepcopy([parted.model.state_dict(), parted.optimizer.state_dict()])
    # goes on beyond what was saved, and is killed in the middle of a line
    train(parted, first, 3, 6)
    record = tmp_path / "parted" / "watch.jsonl"
    record.write_bytes(record.read_bytes() + torn)
    assert 4 in read_watch(tmp_path / "parted")["step"]
    again = Case()
    again.model.load_state_dict(state[0])
    again.optimizer.load_state_dict(state[1])
    second = again.watch(tmp_path / "parted", snapshots=2, resume=True)
    train(again, second, 3, 7)
    xr.testing.assert_identical(
        read_watch(tmp_path / "parted"), read_watch(tmp_path / "whole")
    )
    lines = record.read_bytes()
    assert lines.endswith(b"\n")
    assert lines == (tmp_path / "whole" / "watch.jsonl").read_bytes()


def test_folder_of_other_run_stays_unchanged(tmp_path: Path) -> None:
    """A folder of another run is left as it is."""
    case = Case()
    case.watch(tmp_path, snapshots=1)(0, loss=1.0)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
    expect_error("the record of another run", case.watch, tmp_path)
    expect_error(
        r"written with epsilon=0\.01, not 0\.5",
        case.watch,
        tmp_path,
        epsilon=0.5,
        resume=True,
    )
    more = nn.Sequential(nn.Linear(1, 1))
    expect_error(
        "with weights=",
        Watch,
        more,
        loss=case.losses,
        patterns=case.patterns,
        name="Net",
        products=4,
        out=tmp_path,
        resume=True,
    )
    (tmp_path / "watch.jsonl").write_text('{"step": 3}\n')
    expect_error("not the record of a Watch", case.watch, tmp_path, resume=True)
    (tmp_path / "watch.jsonl").write_bytes(before[tmp_path / "watch.jsonl"])
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == before
    (tmp_path / "watch.jsonl").write_bytes(b"xx\n" + before[tmp_path / "watch.jsonl"])
    for read in (
        lambda: read_watch(tmp_path),
        lambda: case.watch(tmp_path, resume=True),
    ):
        expect_error("line 1", read)
    expect_error(r"no watch\.jsonl", read_watch, tmp_path / "none")
    expect_error("not a folder to write to", case.watch, tmp_path / "watch.jsonl")
    # killed before the first line was whole
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "watch.jsonl").write_text('{"step": -1, "sett')
    expect_error("does not say", read_watch, tmp_path / "new")
    case.watch(tmp_path / "new", resume=True)(0, loss=1.0)
    assert read_watch(tmp_path / "new")["loss"].values.tolist() == [1.0]


def test_infinite_measure_ends_watch_loses_nothing(tmp_path: Path) -> None:
    """A value that is not finite ends the watch and loses nothing."""
    case = Case()
    watch = case.watch(tmp_path, every=1, measures=["attention"])
    watch(0, loss=2.0)
    before = case.state()
    expect_error(
        "loss is nan at step 1",
        watch,
        1,
        loss=torch.tensor(torch.nan),
    )
    for weight in case.model.parameters():
        weight.data.fill_(torch.nan)
    expect_error("attention holds", watch, 2)
    assert read_watch(tmp_path)["step"].values.tolist() == [0]
    assert case.state()[-2:] == before[-2:]


def test_wrong_use_is_told() -> None:
    case = Case()
    for options, text in (
        ({"every": 0}, "every=0"),
        ({"snapshots": -1}, "snapshots=-1"),
        ({"snapshots": 2, "patterns": None}, "snapshots keep attention"),
        ({"inputs": 0}, "inputs=0"),
        ({"products": 0}, "products=0"),
        ({"measures": ["sharpness"], "loss": None}, "'sharpness' needs loss=…"),
        ({"measures": ["gradient_noise"], "loss": case.losses[0]}, r"needs loss=\[…\]"),
        ({"measures": ["attention"], "patterns": None}, "needs patterns=…"),
        ({"loss": 3}, "iter|loss"),
    ):
        with pytest.raises((InputError, TypeError), match=text):
            case.watch(**options)
    expect_error("Closest: sharpness", case.watch, measures=["sharpnes"])
    watch = case.watch(measures=[])
    watch(4)
    expect_error("step 3 after step 4", watch, 3)
    frozen = Case()
    frozen.model.requires_grad_(False)
    expect_error("no parameters", lambda: frozen.watch()(0))


def test_own_measures_are_recorded_and_checked(
    tmp_path: Path,
) -> None:
    """Measures of one's own are recorded, and their form is checked."""
    case = Case()

    def norm() -> dict[str, float]:
        return {
            "norm": float(
                sum(
                    weight.square().sum() for weight in case.model.parameters()
                ).detach()
                ** 0.5
            ),
            "odd": np.nan,
        }

    # called by the project's own loop
    watch = case.watch(tmp_path, measures=[norm], every=4)
    Training(case, case.optimizer, Plan(steps=3), callbacks=[watch]).run(quiet=True)
    case = Case()
    data = read_watch(tmp_path)
    assert data["norm"].item() == norm()["norm"]
    # JSON for everyone
    assert '"odd": null' in (tmp_path / "watch.jsonl").read_text()
    assert np.isnan(data["odd"]).all()

    def change() -> dict[str, float]:
        with torch.no_grad():
            case.model.head.bias.add_(1)
        return {}

    expect_error("1 parameters were changed", case.watch(measures=[change]), 0)
    expect_error("'<lambda>' gave 3", case.watch(measures=[lambda: 3]), 0)


def test_runs_and_seeds_share_one_table() -> None:
    """The records of several runs and seeds are put together."""

    def seen(steps: range, shift: float, layers: str) -> xr.Dataset:
        pattern = torch.eye(3)[None].expand(2, 3, 3)
        watch = Watch(
            nn.Linear(1, 1),
            every=1,
            patterns=lambda: dict.fromkeys(layers, pattern),
            snapshots=1,
        )
        for step in steps:
            watch(step, loss=step + shift)
        return watch.dataset()

    a = [seen(range(3), 0.0, "xy"), seen(range(2), 0.5, "xy")]
    b = seen(range(1, 4), 9.0, "zx")
    data = together({"a": a, "b": b})
    assert data["loss"].dims == ("run", "seed", "step")
    assert data["layer"].values.tolist() == ["x", "y", "z"]
    nan = np.nan
    assert_array_equal(
        data["loss"],
        [
            [[0, 1, 2, nan], [0.5, 1.5, nan, nan]],
            [[nan, 10, 11, 12], [nan, nan, nan, nan]],
        ],
    )
    assert np.isnan(data["nuclear_norm"].sel(run="a", layer="z")).all()
    assert data["pattern"].sel(run="b", seed=0, snapshot=3, layer="z").sum() == 6
    expect_error("no dataset", together, {})
    other = xr.Dataset(attrs={"kind": "attention_norms"})
    text = "kinds attention_norms, training_watch"
    expect_error(text, together, {"a": b, "b": other})


def test_failed_writes_leave_nothing_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the folder does not hold is not in the dataset either."""
    watch = Case().watch(tmp_path, every=1, snapshots=1, measures=["attention"])
    watch(0, loss=2.0)

    def full(*_args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(callback, "append", full)
    with pytest.raises(OSError, match="no space"):
        watch(1, loss=2.0)
    data = watch.dataset()
    assert data["snapshot"].values.tolist() == data["step"].values.tolist() == [0]


def test_sizes_of_layers_may_differ_by_run() -> None:
    """Runs that read contexts of other lengths keep their own sizes."""

    def seen(size: int) -> xr.Dataset:
        pattern = torch.eye(size)[None].expand(2, size, size)
        watch = Watch(
            nn.Linear(1, 1),
            every=1,
            patterns=lambda: {"x": pattern},
            measures=["attention"],
        )
        watch(0, loss=1.0)
        return watch.dataset()

    data = together({"short": seen(3), "long": seen(5)})
    for name in ("n_queries", "n_keys"):
        assert data[name].sel(layer="x").values.tolist() == [3, 5]
    same = together({"one": seen(3), "other": seen(3)})
    assert same["n_keys"].dims == ("layer",)
    assert same["n_keys"].values.tolist() == [3]
