"""Series that training draws from, in a file made once by seed, and groups with covariates."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from tsfm_lens.console import console
from tsfm_lens.errors import CheckpointError, unknown_name
from tsfm_lens.places import replacing
from tsfm_lens.studies.recipes.families import FAMILIES, chaotic, kernelsynth, unit
from tsfm_lens.training.losses import Stage
from tsfm_lens.training.series_source import LENGTH, Corpus, SeriesSource

OVERLAP = 160
"""Real series longer than a row become rows that start this many steps apart."""

PERIOD_SCALES = (1.0, 1.0, 0.5, 2.0)
"""What multiplies the periods of KernelSynth in each quarter of its rows: contexts are shorter than the paper's."""

REAL = "real"


def save_corpus(corpus: Corpus, path: Path) -> None:
    """Write a corpus as one file; an old one is replaced only once the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = np.array(sorted(corpus.rows))
    # numpy adds .npz to a name without it, but not to an open file
    with replacing(path) as part, part.open("wb") as file:
        np.savez(file, values=corpus.values, names=names, bounds=np.array([corpus.rows[name] for name in names]))


def read_corpus(path: Path) -> Corpus:
    """Read a file of :func:`save_corpus`."""
    with arrays_of(path) as arrays:
        bounds = {str(name): (int(a), int(b)) for name, (a, b) in zip(arrays["names"], arrays["bounds"], strict=True)}
        return Corpus(arrays["values"], bounds)


def known_families() -> tuple[str, ...]:
    """Return every name that a mixture may contain."""
    return (*FAMILIES, "kernelsynth", "chaotic", REAL, "tsmixup")


@contextmanager
def arrays_of(path: Path) -> Iterator[NpzFile]:
    """Open the arrays of a file that `tools/build_training_series.py` or :func:`save_corpus` wrote."""
    advice = f"make it with tools/build_training_series.py {path}"
    if not path.exists():
        raise CheckpointError(f"no training series at {path}: {advice}")
    try:
        arrays = np.load(path)
    except (ValueError, BadZipFile, EOFError) as error:
        raise CheckpointError(f"{path} holds no series (.npz): {advice}") from error
    if not isinstance(arrays, NpzFile):
        raise CheckpointError(f"{path} holds one array, no series (.npz): {advice}")
    with arrays:
        yield arrays


def series_of(arrays: NpzFile, name: str, path: Path) -> NDArray[np.number]:
    """Read a series (time,) from the arrays of a file; NaN is a gap, CheckpointError for what is none."""
    advice = f"make it again with tools/build_training_series.py {path}"
    try:
        values = arrays[name]
    except (ValueError, EOFError, OSError, BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{path}: array {name} cannot be read, expected a series of numbers; {advice}") from error
    whole = values.ndim == 1 and values.dtype.kind in "iuf"
    if whole:
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        whole = bool(np.isfinite(single).any() and not np.isinf(single).any())
    if not whole:
        raise CheckpointError(
            f"{path}: array {name} of shape {list(values.shape)} and type {values.dtype} is no series; expected finite "
            f"numbers of float32 along one axis, NaN where there is a gap; {advice}"
        )
    return values


def real_rows(path: Path) -> NDArray[np.float32]:
    """Cut rows (row, LENGTH) from the training series in `path`, as `tools/build_training_series.py` writes it."""
    rows: list[NDArray[np.float32]] = []
    with arrays_of(path) as arrays:
        for name in sorted(key for key in arrays if key.startswith("training/")):
            series = series_of(arrays, name, path)
            pieces = 1 if len(series) <= LENGTH else -(-len(series) // OVERLAP)
            series = np.concatenate([np.full(max(0, LENGTH - len(series)), np.nan, np.float32), series])
            starts = np.linspace(0, len(series) - LENGTH, int(np.ceil(4 * pieces**0.5))).astype(int)
            rows.extend(series[start : start + LENGTH].astype(np.float32) for start in starts)
    if not rows:
        raise CheckpointError(f"{path} holds no array training/…: make it with tools/build_training_series.py {path}")
    return np.stack(rows)


def draw_family(name: str, count: int, *, seed: int, device: str = "cpu") -> NDArray[np.float32]:
    """Draw `count` rows of one synthetic family: (count, LENGTH)."""
    rng = np.random.default_rng([seed, *name.encode()])
    if name == "kernelsynth":
        quarters = np.array_split(np.arange(count), len(PERIOD_SCALES))
        parts = [
            kernelsynth(rng, len(part), LENGTH, device=device, period_scale=scale)
            for part, scale in zip(quarters, PERIOD_SCALES, strict=True)
        ]
        return unit(np.concatenate(parts)).astype(np.float32)
    if name == "chaotic":
        return unit(chaotic(rng, count, LENGTH)).astype(np.float32)
    if name in FAMILIES:
        # a shorter draw has shorter periods, so that a context holds several of most seasons
        short = FAMILIES[name](rng, count // 2, LENGTH // 2)
        padded = np.concatenate([np.full_like(short, np.nan), short], axis=1)
        return np.concatenate([padded, FAMILIES[name](rng, count - count // 2, LENGTH)]).astype(np.float32)
    raise unknown_name("series family", name, known_families())


def build_corpus(sizes: Mapping[str, int], *, seed: int, real: Path | None = None, device: str = "cpu") -> Corpus:
    """Draw every family of `sizes` (name: rows), and the real series if their file is given."""
    # read first: a wrong file is refused before anything is drawn
    return _assemble(sizes, seed, None if real is None else real_rows(real), device)


def _assemble(sizes: Mapping[str, int], seed: int, real: NDArray[np.float32] | None, device: str) -> Corpus:
    parts = {name: draw_family(name, count, seed=seed, device=device) for name, count in sorted(sizes.items())}
    if real is not None:
        parts[REAL] = real
    stops = np.cumsum([len(part) for part in parts.values()])
    rows = {name: (int(stop) - len(part), int(stop)) for (name, part), stop in zip(parts.items(), stops, strict=True)}
    return Corpus(np.concatenate(list(parts.values())), rows)


def load_corpus(
    sizes: Mapping[str, int], *, seed: int, cache: Path, real: Path | None = None, device: str | None = None
) -> Corpus:
    """Read the corpus of these sizes and this seed from the folder `cache`, or draw and save it."""
    title = repr(
        (sorted(sizes.items()), seed, LENGTH, PERIOD_SCALES, real and hashlib.sha256(real.read_bytes()).hexdigest())
    )
    path = cache / f"corpus-{hashlib.sha256(title.encode()).hexdigest()[:12]}.npz"
    if not path.exists():
        # a wrong file is refused before the user has to wait
        real_values = None if real is None else real_rows(real)
        cache.mkdir(parents=True, exist_ok=True)
        console(stderr=True).print(f"drawing the series to train on, once, into {path}: minutes")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        save_corpus(_assemble(sizes, seed, real_values, device), path)
    return read_corpus(path)


SHARES = (0.0, 0.25, 0.5, 0.5, 0.75, 0.9)
"""Shares of the target's variance that its covariates carry."""

KNOWN_SHARE = 0.8
"""Share of covariates whose future is known."""

EVENT_SHARE = 0.3
"""Share of covariates that are events: 1 now and then, 0 otherwise."""

LAGS = (0, 0, 0, 0, 1, 2, 3)
"""Steps by which a covariate leads the target."""

DEVIATION_FLOOR = 1e-4


@dataclass(frozen=True)
class Groups:
    """Batch in Chronos-2's own form, three rows per group: the target and two other series."""

    context: Tensor
    future: Tensor
    future_covariates: Tensor
    group_ids: Tensor


def standardised(series: Tensor) -> Tensor:
    """Standardise rows to mean 0 and standard deviation 1, gaps filled with 0."""
    present = ~series.isnan()
    count = present.sum(-1, keepdim=True).clamp(min=1)
    mean = series.nan_to_num(0.0).sum(-1, keepdim=True) / count
    centred = torch.where(present, series - mean, 0.0)
    return centred / (centred.square().sum(-1, keepdim=True) / count).sqrt().clamp(min=DEVIATION_FLOOR)


def covariate_batch(
    source: SeriesSource, step: int, *, mix: Mapping[str, float], groups: int, context: int, horizon: int
) -> Groups:
    """Draw `groups` groups: target = own part + the effect of its covariates, by a share of the variance."""
    rng = np.random.default_rng([source.seed, step, 2])
    parts = source.batch(step, mix=mix, rows=3 * groups, context=context, horizon=horizon)
    series = standardised(torch.cat(parts, 1)).view(groups, 3, context + horizon)
    alone, others = series[:, 0], series[:, 1:]

    events = torch.from_numpy(rng.random((groups, 2, 1)) < EVENT_SHARE).to(source.device)
    height = source._to(rng.uniform(0.5, 1.8, (groups, 2, 1)))
    others = torch.where(events, standardised((others > height).float()), others)
    lag = torch.from_numpy(rng.choice(LAGS, (groups, 2, 1))).to(source.device)
    time = torch.arange(context + horizon, device=source.device)
    leading = others.gather(-1, (time - lag).clamp(min=0).expand_as(others))
    # one effect in five is not a straight line
    nonlinear = torch.from_numpy(rng.random((groups, 2, 1)) < 0.2).to(source.device)
    effect = torch.where(nonlinear, standardised(leading.abs()), leading)
    member = rng.random((groups, 2)) < 0.75
    weight = rng.normal(0, 1, (groups, 2)) * member
    weight = weight / np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-9)
    share = rng.choice(SHARES, (groups, 1))
    pull = (source._to(weight)[..., None] * effect).sum(1)
    target = source._to(np.sqrt(1 - share)) * alone + source._to(np.sqrt(share)) * pull

    rows = torch.cat([target[:, None], others], 1)
    unit = source._to(np.exp(rng.normal(0, 1.5, (groups, 3, 1))))
    level = source._to(rng.normal(0, 2, (groups, 3, 1)) * (rng.random((groups, 3, 1)) < 0.5))
    rows = ((rows + level) * unit).view(3 * groups, -1)
    ids = np.arange(groups)[:, None].repeat(3, 1)
    ids[:, 1:] = np.where(member, ids[:, 1:], groups + np.arange(2 * groups).reshape(groups, 2))
    has_future = np.zeros((groups, 3), dtype=bool)
    has_future[:, 1:] = (rng.random((groups, 2)) < KNOWN_SHARE) & member
    future = rows[:, context:].contiguous()
    mask = torch.from_numpy(has_future.reshape(-1, 1)).to(source.device)
    return Groups(
        torch.where(
            parts[0].isnan().view(groups, 3, context)[:, :1].expand(-1, 3, -1).reshape(3 * groups, context),
            torch.nan,
            rows[:, :context],
        ),
        future,
        torch.where(mask, future, torch.nan),
        torch.from_numpy(ids.reshape(-1)).to(source.device),
    )


def group_loss(model: PreTrainedModel, groups: Groups, stage: Stage) -> torch.Tensor:
    """Compute the native quantile loss per forecast step and level of a model with covariates."""
    patch = model.chronos_config.output_patch_size
    loss = model(
        context=groups.context,
        group_ids=groups.group_ids,
        future_covariates=groups.future_covariates,
        future_target=groups.future,
        num_output_patches=-(-stage.horizon // patch),
    ).loss
    return loss / len(model.chronos_config.quantiles)
