"""Train at low rank: ``python -m tsfm_lens.studies.recipes.lowrank --out DIR`` trains and measures every arm.

Arms that are done are left as they are, so that a run that was stopped goes on with the same command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
import xarray as xr

from tsfm_lens.console import console
from tsfm_lens.places import refuse_unwritable, replacing
from tsfm_lens.studies.recipes.arms import ATTENTION, BASE, DENSE, SEEDS, VOCABULARIES, Arm, arms
from tsfm_lens.studies.recipes.compared import attention_record, spectra_record, vocabulary_record
from tsfm_lens.studies.recipes.corpus import Corpus, load_corpus
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training.command import run_command
from tsfm_lens.training.state import STATE

CORPUS_SEED = 0


def trained(arm: Arm, out: Path, corpus: Corpus, *, quiet: bool = False) -> bool:
    """Train one arm to its end in its folder below `out`, from its last saved state if there is one."""
    trainer = Trainer(arm.recipe, out / arm.folder, corpus, device="cpu")
    if (out / arm.folder / STATE).exists():
        trainer.resume()
    return trainer.run(quiet=quiet)


def records(arm_list: list[Arm], out: Path, corpus: Corpus) -> dict[str, xr.Dataset]:
    """Compute the results of the arms, by the name of their file.

    Args:
        arm_list: arms that have ended, all seeds of each.
        out: folder of their runs.
        corpus: that they were trained on.
    """
    runs: dict[str, dict[int, tuple[Arm, Path]]] = {}
    for arm in arm_list:
        runs.setdefault(arm.name, {})[arm.seed] = arm, out / arm.folder
    vocabularies = {number: runs[f"vocabulary {number}"] for number in VOCABULARIES if f"vocabulary {number}" in runs}
    result = {
        "attention": attention_record({name: runs[name] for name in ATTENTION if name in runs}, corpus),
        "spectra": spectra_record(runs[DENSE]),
    }
    return result | ({"vocabulary": vocabulary_record(vocabularies)} if vocabularies else {})


def main(
    out: Annotated[Path, typer.Option(file_okay=False, help="folder of the runs")],
    *,
    steps: Annotated[int | None, typer.Option(min=1, help="optimiser steps of each arm")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="seeds of each arm of attention")] = SEEDS,
    vocabulary_seeds: Annotated[int, typer.Option(min=1, help="seeds of each fixed vocabulary")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
) -> None:
    """Train every arm, then write what they came to as OUT/attention.nc, vocabulary.nc and spectra.nc."""
    torch.set_num_threads(threads)
    refuse_unwritable(out)
    corpus = load_corpus(BASE.corpus, seed=CORPUS_SEED, cache=out / "corpora")
    arm_list = list(arms(steps=steps, seeds=seeds, vocabulary_seeds=vocabulary_seeds))
    for arm in arm_list:
        if not trained(arm, out, corpus):
            console().print("stopped; the same command goes on")
            return
    for name, record in records(arm_list, out, corpus).items():
        with replacing(out / f"{name}.nc") as part:
            record.to_netcdf(part, engine="scipy")
        console().print(f"{out / name}.nc: {record.attrs['title']}")


if __name__ == "__main__":
    run_command(main)
