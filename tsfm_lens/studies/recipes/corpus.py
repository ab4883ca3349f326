"""Series that training draws from, kept in a file that sizes and a seed determine.

Read :func:`load_corpus` first: it reads the file, or draws every family, adds the real
series and saves them. The generators of synthetic families are in
:mod:`tsfm_lens.studies.recipes.families`; batches are drawn by
:mod:`tsfm_lens.training.series_source`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import CheckpointError, unknown_name
from tsfm_lens.core.io import replacing
from tsfm_lens.studies.recipes.families import (
    FAMILIES,
    WHOLE,
    SeriesDraw,
    unit,
)
from tsfm_lens.training.series_source import LENGTH, Corpus

OVERLAP = 160
"""Steps of a piece; the pieces of a long real series decide its number of rows."""

REAL = "real"


def open_arrays(path: Path) -> NpzFile:
    """Open a file of `tools/build_training_series.py` or :func:`load_corpus`."""
    advice = f"make it with tools/build_training_series.py {path}"
    try:
        arrays: NpzFile = np.load(path)
    except (OSError, ValueError, BadZipFile, EOFError) as error:
        raise CheckpointError(f"{path} holds no series (.npz): {advice}") from error
    return arrays


def real_rows(path: Path) -> NDArray[np.float32]:
    """Cut rows (row, LENGTH) from the training series in `path`.

    The file is one of `tools/build_training_series.py`.
    """
    rows: list[NDArray[np.float32]] = []
    with open_arrays(path) as arrays:
        for name in sorted(key for key in arrays if key.startswith("training/")):
            series = arrays[name]
            n_pieces = 1
            if len(series) > LENGTH:
                n_pieces = math.ceil(len(series) / OVERLAP)
            # a Corpus pads short series with NaN on the left
            missing = max(0, LENGTH - len(series))
            series = np.pad(series, (missing, 0), constant_values=np.nan)
            # the number of rows grows as the root of the length, or long series would
            # fill the corpus
            n_rows = math.ceil(4 * n_pieces**0.5)
            starts = np.linspace(0, len(series) - LENGTH, n_rows).astype(int)
            rows.append(sliding_window_view(series, LENGTH)[starts].astype(np.float32))
    if not rows:
        raise CheckpointError(
            f"{path} holds no array training/…: make it with"
            f" tools/build_training_series.py {path}"
        )
    return np.concatenate(rows)


def draw_family(name: str, count: int, *, seed: int) -> NDArray[np.float32]:
    """Draw `count` rows of one synthetic family: (count, LENGTH)."""
    # with its name in the seed, a family is the same whatever others are drawn
    rng = np.random.default_rng([seed, *name.encode()])
    if name in WHOLE:
        return unit(WHOLE[name](SeriesDraw(rng, count, LENGTH))).astype(np.float32)
    if name in FAMILIES:
        # half of the rows are drawn at half the length, which makes their periods
        # shorter, so that a context holds several of most seasons
        short = FAMILIES[name](SeriesDraw(rng, count // 2, LENGTH // 2))
        padded = np.hstack([np.full_like(short, np.nan), short])
        long = FAMILIES[name](SeriesDraw(rng, count - count // 2, LENGTH))
        return np.vstack([padded, long]).astype(np.float32)
    raise unknown_name("series family", name, [*FAMILIES, *WHOLE])


def draw_parts(
    sizes: Mapping[str, int], *, seed: int, real: Path | None = None
) -> dict[str, Any]:
    """Draw every family of `sizes` (name: rows), and add the real series if given."""
    # read first: a wrong file is refused before anything is drawn
    real_parts = {} if real is None else {REAL: real_rows(real)}
    return {
        name: draw_family(name, count, seed=seed)
        for name, count in sorted(sizes.items())
    } | real_parts


def join_parts(parts: Mapping[str, Any]) -> Corpus:
    """Return a corpus of the rows of families, by name."""
    stops = np.cumsum([len(part) for part in parts.values()]).tolist()
    bounds = zip([0, *stops], stops, strict=False)
    rows = dict(zip(parts, bounds, strict=True))
    return Corpus(np.concatenate(list(parts.values())), rows)


def build_corpus(sizes: Mapping[str, int], **options: Any) -> Corpus:
    """Draw a corpus, with the options of :func:`draw_parts`."""
    return join_parts(draw_parts(sizes, **options))


def load_corpus(
    sizes: Mapping[str, int],
    *,
    seed: int,
    cache: Path,
    real: Path | None = None,
) -> Corpus:
    """Read the corpus of these sizes and this seed from the folder `cache`.

    If it is not there, it is drawn and saved.
    """
    digest = real and hashlib.sha256(real.read_bytes()).hexdigest()
    contents = repr((sorted(sizes.items()), seed, LENGTH, digest))
    path = cache / f"corpus-{hashlib.sha256(contents.encode()).hexdigest()[:12]}.npz"
    if not path.exists():
        console(stderr=True).print(
            f"drawing the series to train on, once, into {path}: minutes"
        )
        parts = draw_parts(sizes, seed=seed, real=real)
        path.parent.mkdir(parents=True, exist_ok=True)
        # numpy adds .npz to a name without it, but not to an open file
        with replacing(path) as part, part.open("wb") as file:
            np.savez(file, **parts)
    with open_arrays(path) as arrays:
        return join_parts(dict(arrays))
