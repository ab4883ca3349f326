"""Training runs from a file to a result; what is gathered of them; the command;
figures of the records.
"""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.cli import app
from tsfm_lens.report.build import draw_results
from tsfm_lens.studies import experiments, recipes, samformer
from tsfm_lens.studies.samformer.models import make_model
from tsfm_lens.studies.samformer.tasks import ToyTask, compute_errors
from tsfm_lens.testing import assert_close
from tsfm_lens.training import SAM, read_watch, sharpness
from tsfm_lens.viz.printing import COLUMNS

SMALL = {
    "kind": "toy",
    "length": 12,
    "horizon": 4,
    "channels": 3,
    "training": 96,
    "validation": 32,
}


def config(model: str = "transformer", **fields: Any) -> experiments.TrainConfig:
    plan = {"epochs": 3, "batch": 32, "patience": None, **fields.pop("plan", {})}
    content = {
        "model": {"name": model, "options": {"width": 4}},
        "data": SMALL,
        "plan": plan,
        **fields,
    }
    return experiments.TrainConfig.model_validate(content)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    """A run goes on where it was stopped, and only if asked to."""
    watched = {
        "watch": {
            "every": 1,
            "measures": ["sharpness", "attention"],
            "windows": 8,
            "products": 4,
        }
    }
    full = experiments.train(
        config(optimizer={"rho": 0.1}, **watched), tmp_path / "whole", quiet=True
    )
    chosen = config(optimizer={"rho": 0.1}, **watched)
    run, _, _ = experiments.prepare(chosen, tmp_path / "parts")
    (tmp_path / "parts" / "config.json").write_text(chosen.model_dump_json())
    run.run(until=4, quiet=True)
    expect_error("--resume", experiments.train, chosen, tmp_path / "parts", quiet=True)
    again = experiments.train(chosen, tmp_path / "parts", resume=True, quiet=True)
    assert {**again, "seconds": 0} == {**full, "seconds": 0}
    seen = [read_watch(tmp_path / name) for name in ("whole", "parts")]
    assert (
        seen[0]["step"].values.tolist()
        == seen[1]["step"].values.tolist()
        == [0, 3, 6, 9]
    )
    np.testing.assert_array_equal(seen[0]["sharpness"], seen[1]["sharpness"])
    expect_error(
        "no run to go on with",
        experiments.train,
        chosen,
        tmp_path / "none",
        resume=True,
    )
    expect_error(
        "other settings",
        experiments.train,
        config(optimizer={"rho": 0.2}),
        tmp_path / "whole",
        resume=True,
    )


@pytest.mark.parametrize("rho", [0.0, 0.1], ids=["Adam", "SAM"])
def test_dropout_follows_the_seed(
    rho: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Dropout depends on the run's seed alone, in a resumed run too."""
    chosen = experiments.TrainConfig.model_validate(
        {
            "model": {"name": "tsmixer", "options": {"hidden": 4, "dropout": 0.5}},
            "data": SMALL,
            "plan": {"epochs": 3, "batch": 32, "patience": None},
            "optimizer": {"rho": rho},
        }
    )
    torch.manual_seed(1)
    before = torch.get_rng_state()
    whole = experiments.train(chosen, tmp_path / "whole", quiet=True)
    assert torch.equal(torch.get_rng_state(), before)
    other = chosen.model_copy(update={"seed": 1})
    assert (
        whole["validation"]
        != (experiments.train(other, tmp_path / "other", quiet=True)["validation"])
    )

    looks: list[int] = []
    evaluate = ToyTask.evaluate

    def evaluate_and_stop(task: ToyTask) -> dict[str, float]:
        looks.append(1)
        if len(looks) == 2:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(task)

    monkeypatch.setattr(ToyTask, "evaluate", evaluate_and_stop)
    torch.manual_seed(2)
    stopped = experiments.train(chosen, tmp_path / "parts", quiet=True)
    assert not stopped["ended"]
    torch.manual_seed(3)
    resumed = experiments.train(chosen, tmp_path / "parts", resume=True, quiet=True)
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}


def test_what_a_run_did_is_gathered(tmp_path: Path) -> None:
    """Errors, curves and looks are those of the run's own files."""
    expect_error("no run", experiments.gathered, tmp_path / "none")
    measures = ["sharpness", "attention"]
    watch = {"every": 1, "windows": 8, "products": 4, "snapshots": True}
    found = {}
    for name, model in (("plain", "transformer"), ("random", "random-transformer")):
        chosen = config(model, watch={**watch, "measures": measures})
        experiments.train(chosen, tmp_path / name, quiet=True)
        found[name] = experiments.gathered(tmp_path / name, name)
    one = found["random"].sel(arm="random", seed=0)
    alone = json.loads((tmp_path / "random" / "result.json").read_text())
    assert float(one["validation_mse"]) == alone["validation"]["mse"]
    assert one["curve"].shape == (4,)
    assert float(one["curve"][-1]) == alone["validation"]["mse"]
    seen = read_watch(tmp_path / "random")
    np.testing.assert_array_equal(one["sharpness"], seen["sharpness"])
    np.testing.assert_array_equal(one["entropy"], seen["entropy"].values[:, 0, 0])
    assert one["look_step"].values.tolist() == [0, 3, 6, 9]
    first = read_watch(tmp_path / "plain")["pattern"].values[:, 0, 0, 0]
    np.testing.assert_array_equal(found["plain"]["pattern"][0, 0], first)
    # the attention of the random transformer stays as it was drawn
    np.testing.assert_array_equal(one["entropy"], one["entropy"].values[0])
    experiments.train(config(), tmp_path / "unwatched", quiet=True)
    assert "sharpness" not in experiments.gathered(tmp_path / "unwatched")


def waves(path: Path) -> Path:
    table = (
        np.sin(np.arange(300)[:, None] / np.array([3.0, 7.0]))
        + np.arange(300)[:, None] / 200
    )
    file = path / "waves.csv.gz"
    with gzip.open(file, "wt") as out:
        out.write("a,b\n" + "\n".join(f"{row[0]},{row[1]}" for row in table))
    return file


def test_the_command_trains_on_a_file(tmp_path: Path) -> None:
    """The command trains on a file and prints the errors."""
    waves(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {name: samformer, options: {width: 4}}\ndata: {file: waves.csv.gz,"
        " length: 24, horizon: 6}\noptimizer: {rho: 0.2}\nplan: {epochs: 2}\n"
    )
    reported = CliRunner().invoke(app, ["train", str(file), "--json"])
    assert reported.exit_code == 0, reported.output
    found = json.loads(reported.stdout[reported.stdout.index("{") :])
    assert found["folder"] == str(tmp_path / "run")
    made = samformer.benchmark(tmp_path / "waves.csv.gz", length=24, horizon=6)
    model = make_model("samformer", 24, 6, 2, width=4)
    model.load_state_dict(load_file(tmp_path / "run" / "best.safetensors"))
    assert compute_errors(model, made.test) == found["test"]
    again = CliRunner().invoke(app, ["train", str(file)])
    assert again.exit_code == 1
    assert "--resume" in again.output
    assert CliRunner().invoke(app, ["train", str(file), "--resume"]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {name: samformr}\ndata: {kind: toy}", "there is no model 'samformr'"),
        ("model: {name: samformer}", "data"),
        (
            "model: {name: samformer}\ndata: {kind: toy}\noptimiser: {rho: 1}",
            "nearest is 'optimizer'",
        ),
        (
            "model: {name: samformer}\ndata: {kind: toy, lenght: 3}",
            "nearest is 'length'",
        ),
        (
            "model: {name: samformer}\ndata: {kind: toy}\noptimizer: {lr: 1}",
            "nearest is 'learning_rate'",
        ),
        (
            "model: {name: samformer}\ndata: {kind: toy}\noptimizer: {foo: 1}",
            "is not a field of a training run (there",
        ),
        (
            "model: {name: samformer}\ndata: {kind: toy}\noptimizer: {momentum: 0.9}",
            "argument of sgd",
        ),
        (
            "model: {name: samformer}\ndata: {kind: toy}\nplan: {epochs: 0}",
            "plan.epochs",
        ),
        ("model: {name: samformer}\ndata: {file: none.csv}", "none.csv"),
        ("model: {name: samformer, options: {wdth: 4}}\ndata: {kind: toy}", "wdth"),
        ("- 1", "expected the fields"),
    ],
)
def test_untrainable_configurations_are_refused_before_writing(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    reported = CliRunner().invoke(app, ["train", str(file)])
    assert reported.exit_code == 1, reported.output
    assert message in " ".join(reported.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_trained_weights_are_measured_as_kept(
    tmp_path: Path,
) -> None:
    """What describes trained weights is measured at the weights that were kept."""
    data = {"kind": "file", "file": waves(tmp_path), "length": 24, "horizon": 6}
    folders = {}
    for name, options, optimizer in (
        ("samformer", {"width": 4}, {"rho": 0.2}),
        ("tsmixer", {"hidden": 3, "blocks": 1}, {}),
    ):
        fields = {
            "model": {"name": name, "options": options},
            "data": data,
            "optimizer": optimizer,
            "plan": {"epochs": 2},
        }
        folders[name] = tmp_path / name
        chosen = experiments.TrainConfig.model_validate({**fields, "seed": 1})
        expect_error("no run", experiments.ends, folders[name])
        experiments.train(chosen, folders[name], quiet=True)
    name = "waves 6 SAMformer"
    found = experiments.ends(folders["samformer"], name, windows=3, products=200)
    made = samformer.benchmark(data["file"], length=24, horizon=6)
    model = make_model("samformer", 24, 6, 2, width=4, seed=1)
    model.load_state_dict(load_file(folders["samformer"] / "best.safetensors"))
    one = found.sel(arm=name, seed=1)
    x, _ = made.test.take(
        torch.tensor([0, (len(made.test) - 1) // 2, len(made.test) - 1])
    )
    with torch.no_grad():
        stream = model.embed(x, *model.statistics(x))
        attn = model.blocks[0].attn
        patterns = (attn.q(stream) @ attn.k(stream).mT / 2.0).softmax(-1)
    assert_close(one["end_pattern"], patterns.mean(0), depth=400, dtype="float32")
    norms = [torch.linalg.matrix_norm(pattern, "nuc") for pattern in patterns]
    assert_close(one["end_nuclear_norm"], norms, depth=2000, dtype="float32")
    assert_close(
        one["end_diagonal_mass"],
        patterns.diagonal(dim1=1, dim2=2).mean(-1),
        depth=400,
        dtype="float32",
    )
    indices = torch.linspace(0, len(made.training) - 1, 6, dtype=torch.float64).long()
    x, y = made.training.take(indices)
    expected = sharpness(
        lambda: (model(x) - y).square().mean(), model, steps=200
    ).largest
    assert_close(float(one["end_sharpness"]), expected, depth=2**14, dtype="float32")
    # a model without attention between channels has a sharpness alone
    mixer = experiments.ends(folders["tsmixer"])
    assert sorted(mixer) == ["end_sharpness", "end_sharpness_residual"]
    assert np.isfinite(mixer["end_sharpness"]).all()
    norms_of = experiments.end_norms(found, [name])
    assert norms_of["nuclear_norm"].shape == (1, 1, 1, 3)
    assert norms_of["n_keys"].values.tolist() == [2]
    expect_error(name, experiments.end_norms, found, ["waves 6 SAMforme"])
    experiments.train(config(), tmp_path / "toy", quiet=True)
    expect_error("of no benchmark", experiments.ends, tmp_path / "toy")
    gathered = experiments.gathered(folders["samformer"])
    assert (gathered["rho"].item(), gathered["horizon"].item()) == (0.2, 6)


RECORDS = {name: experiments.record(name) for name in experiments.record_names()}
RECORDS |= {name: recipes.low_rank_record(name) for name in ("attention", "spectra")}


@pytest.mark.parametrize(
    "name", [name for name, record in RECORDS.items() if "kind" in record.attrs]
)
def test_every_record_has_figure_and_table(name: str) -> None:
    """Every record of a kind has a figure and a table, and fits a column."""
    record = RECORDS[name]
    plates = draw_results({record.attrs["kind"]: record})[record.attrs["kind"]]
    for plate in plates:
        assert len(plate.table)
        assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()


def test_the_optimiser_follows_the_configuration() -> None:
    given = {
        "name": "adamw",
        "learning_rate": 0.02,
        "weight_decay": 0.3,
        "betas": [0.8, 0.9],
        "rho": 0.1,
    }
    run, _, _ = experiments.prepare(config(optimizer=given))
    (group,) = run.optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (
        0.02,
        0.3,
        (0.8, 0.9),
    )
    assert isinstance(run.optimizer, SAM)
    assert (run.optimizer.rho, type(run.optimizer.base)) == (0.1, torch.optim.AdamW)
    plain, _, _ = experiments.prepare(
        config(optimizer={"name": "sgd", "momentum": 0.5})
    )
    assert (type(plain.optimizer), plain.optimizer.param_groups[0]["momentum"]) == (
        torch.optim.SGD,
        0.5,
    )
