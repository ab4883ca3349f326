"""History of heads over training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import Compute, Options, Work
from tsfm_lens.catalogue.entry import Figure, Measurement, Needs, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import count_of, verb
from tsfm_lens.models import Lens
from tsfm_lens.viz import training_history
from tsfm_lens.viz.select import array
from tsfm_lens.viz.theme import percent

_SCORES = ("prefix_matching", "copy_score", "advantage", "entropy_share")


def read_history(ds: xr.Dataset) -> list[str]:
    """State when copying came, and how many heads look for the motif at the end."""
    steps = ds["training_step"].values
    out = []
    if "copying" in ds:
        copying = array(ds, "copying", "training_step")
        half = int(np.argmax(copying >= copying[-1] / 2)) if copying[-1] > 0 else 0
        share = "of the motif's tokens" if "copy_score" in ds else "of the distance from the mean to a perfect copy"
        out.append(f"At step {int(steps[-1]):,} the model copies {percent(float(copying[-1]))} {share}.")
        if half:
            out.append(f"Half of that is reached between steps {int(steps[half - 1]):,} and {int(steps[half]):,}.")
    name = "prefix_matching" if "prefix_matching" in ds else "advantage"
    heads = array(ds, f"{name}_stands_out", "training_step", "layer", "head") > 0
    heads &= array(ds, name, "training_step", "layer", "head") > 0
    counts = heads.reshape(len(steps), -1).sum(axis=1)
    against = "than an even spread would" if name == "prefix_matching" else "than in the control"
    since = len(counts) - int(np.argmin(np.append(counts[::-1] > 0, False)))
    some = f"; some head has since step {int(steps[since]):,}" if 0 < since < len(counts) - 1 else ""
    out.append(
        f"{count_of(int(counts[-1]), heads[0].size, 'heads')} {verb(int(counts[-1]), 'give')} more attention to what "
        f"followed the last match {against}, beyond the noise{some}."
    )
    return out


def _plates(ds: xr.Dataset) -> Iterator[Plate]:
    scores = [name for name in _SCORES if name in ds]
    yield Plate(training_history(ds), frame(ds, *scores), read_history(ds))


def _record(work: Work, options: Options) -> xr.Dataset:
    from tsfm_lens.zoo import training_record

    return training_record(work.run.lens.model_id)


def _has_record(lens: Lens) -> bool:
    from tsfm_lens.zoo import has_training_record

    return has_training_record(lens.model_id)


MEASUREMENTS = (
    Measurement(
        kind="training_history",
        theme="Behaviour",
        about="heads over the checkpoints of a training: prefix matching, copying, sharpness, loss",
        heading="How the heads came about",
        guide="Checkpoints that were kept during training, each tested on the same repeated motifs. Induction heads "
        "show where prefix matching rises and copying with it.",
        compute=Compute("training_history", "training_history of the checkpoints that were kept", _record),
        plates=_plates,
        figures=(Figure("training_history", "Prefix matching, copying and sharpness of every head over training."),),
        source="after Olsson et al. 2022",
        needs=Needs("a record of its training", "reference checkpoints", _has_record),
    ),
)
