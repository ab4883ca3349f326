"""History of a reference checkpoint: its checkpoints over training, and probes on each.

``python -m tsfm_lens.studies.recipes.history RUN --out FILE.nc`` measures the history
of a training run; the files of the embedded checkpoints are shipped beside their
weights. Read :class:`TrainingHistory` first, a mapping from step to model. The probe is
:func:`tsfm_lens.probes.training_history`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer
import xarray as xr
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.core.io import replacing
from tsfm_lens.models import Lens, load
from tsfm_lens.studies.recipes.export import as_pipeline
from tsfm_lens.studies.recipes.models import build_model
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.training import read_log
from tsfm_lens.training.command import Threads, run_command
from tsfm_lens.training.state import HISTORY, LOG, STATE, read_identity, snapshot_files

__all__ = ["TrainingHistory", "initial_model"]


def _open(model: PreTrainedModel, name: str) -> Lens:
    lens = load(as_pipeline(model.eval()), check=False)
    lens.model_id = name
    return lens


def initial_model(recipe: TrainingRecipe, *, seed: int | None = None) -> Lens:
    """Build the model of a recipe before its first step, the start of training.

    Its widths are those at the end of training.
    """
    if seed is not None:
        recipe = recipe.changed(seed=seed)
    name = f"{recipe.name} (initial weights, seed {recipe.seed})"
    return _open(build_model(recipe, recipe.steps), name)


class TrainingHistory(Mapping[int, Lens]):
    """Checkpoints of a training run by optimiser step, each opened on access."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        state = self.folder / STATE
        log = self.folder / LOG
        if not state.exists() or not log.exists():
            raise CheckpointError(
                f"no training run in {folder}: expected {STATE} and {LOG} of"
                " `tsfm_lens.studies.recipes.train`"
            )
        self.recipe = TrainingRecipe.model_validate_json(read_identity(self.folder))
        self._files = snapshot_files(self.folder)
        if not self._files:
            raise CheckpointError(f"no checkpoints in {self.folder / HISTORY}")
        self.losses = {
            int(line["step"]): float(line["loss"])
            for line in read_log(log)
            if "loss" in line and not self.recipe.stage(line["step"] - 1).log_floor
        }

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __getitem__(self, step: int) -> Lens:
        if step not in self._files:
            nearest = min(self._files, key=lambda other: abs(other - step))
            raise InputError(
                f"no checkpoint of step {step}; the nearest is that of step {nearest}"
            )
        # a checkpoint is saved after its step, so its widths are those of that step
        model = build_model(self.recipe, step - 1)
        missing, unknown = model.load_state_dict(
            load_file(self._files[step]), strict=False
        )
        if unknown or set(missing) - set(model._tied_weights_keys or ()):
            raise CheckpointError(
                f"{self._files[step]} is no checkpoint of {self.recipe.name}"
            )
        return _open(model, f"{self.recipe.name} (step {step})")


def main(
    folder: Annotated[Path, typer.Argument(help="folder of a training run")],
    out: Annotated[Path, typer.Option(help="netCDF file to write")],
    motif: Annotated[
        int | None,
        typer.Option(help="tokens of a repeated motif; the probe's own if left out"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="times that a motif is shown")] = 4,
    threads: Threads = 1,
) -> None:
    """Measure what heads do at every checkpoint of a training run."""
    from tsfm_lens.probes import training_history

    torch.set_num_threads(threads)
    history = TrainingHistory(folder)
    sizes = {"repeats": repeats}
    if motif is not None:
        sizes["motif"] = motif
    result: xr.Dataset = training_history(
        history, losses=history.losses, name=history.recipe.name, **sizes
    )
    with replacing(out) as part:
        result.to_netcdf(part, engine="scipy")
    console().print(
        f"{out}: {len(history)} checkpoints of {history.recipe.name}, steps"
        f" {min(history)} to {max(history)}"
    )


if __name__ == "__main__":
    run_command(main)
