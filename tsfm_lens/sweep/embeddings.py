"""Embeddings of files larger than memory, in a store that a killed run resumes.

Read :func:`write_embeddings` first: it embeds the series of a file part by part, and
keeps each part as one cell of a :class:`tsfm_lens.sweep.store.Store`.
:func:`read_embeddings` reads them back. What a vector is, is said in
:mod:`tsfm_lens.models.embedding`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tsfm_lens.core.choices import check_pool
from tsfm_lens.core.errors import InputError, StoreError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.data.batch import COLUMNS
from tsfm_lens.data.file_parts import PART_ROWS, read_parts
from tsfm_lens.models import Lens
from tsfm_lens.models.base import check_unknown
from tsfm_lens.models.batching import cut
from tsfm_lens.models.embedding import (
    Embeddings,
    embed_batch,
    embedding_point,
    embedding_stack,
)
from tsfm_lens.models.lens import READING
from tsfm_lens.sweep.planner.config import ModelConfig
from tsfm_lens.sweep.planner.models import model_fingerprint
from tsfm_lens.sweep.store import RowLayout, SavedPlan, Store, cell_key

_TIME = (pa.timestamp("ns"), pa.int64())
LAYOUT = RowLayout(
    format="tsfm-lens embeddings",
    version=1,
    noun="embeddings",
    command="tsfm-lens embed MODEL FILE --out",
    types={
        **dict.fromkeys(("cell", "id", "group", "variate", "role"), (pa.string(),)),
        "token": (pa.int32(),),
        "start": _TIME,
        "end": _TIME,
        "special": (pa.string(),),
        "vector": (pa.list_(pa.float32()),),
    },
    required=("cell", "id", "start", "end", "vector"),
    identity=("cell", "id", "token"),
)
"""Rows of embeddings: the columns of ``lens.embed``, and the part as ``cell``."""
_PLAN = "embeddings"


@dataclass
class EmbeddingsOutcome:
    """Outcome of :func:`write_embeddings`.

    Attributes:
        folder: of the store.
        series, parts: number of them, those of earlier runs included.
        resumed: parts that were there before this run.
        notes: on how series were read, and what the model does not read; the first
            twenty.
    """

    folder: Path
    series: int = 0
    parts: int = 0
    resumed: int = 0
    notes: list[str] = field(default_factory=list)

    def add_notes(self, notes: tuple[str, ...]) -> None:
        """Add the notes that are new, while there is room.

        Args:
            notes: sentences.
        """
        for note in notes:
            if note not in self.notes and len(self.notes) < _MAX_NOTES:
                self.notes.append(note)


_MAX_NOTES = 20


def write_embeddings(
    lens: Lens,
    source: Any,
    out: str | Path,
    layer: int | None = None,
    *,
    stack: str | None = None,
    pool: str | None = None,
    rows: int = PART_ROWS,
    progress: Callable[[int], object] = lambda series: None,
    **reading: Any,
) -> EmbeddingsOutcome:
    """Embed the series of a file into a folder of Parquet files.

    One part of the file is in memory at a time. Finished parts are kept: the same call
    goes on after a kill, and ends with the same files.

    Args:
        lens: the model.
        source: path of a long CSV or Parquet file, the rows of an id one after the
            other, which is read in parts; or series as ``lens.embed`` takes them.
        out: folder of the store; new, empty, or of the same embeddings.
        layer: the residual stream after this layer; -1 for the embedding, None for what
            leaves the stack, after its last norm.
        stack: name of the stack; if None, the encoder, which reads the series, and the
            last one where a model has levels.
        pool: "mean", "max", "first" or "last" for one vector of each series; None for
            all tokens.
        rows: of the file in a part, at least.
        progress: called with the number of series so far.
        reading: options of :func:`tsfm_lens.data.read_series`.

    Returns:
        The folder, and what was computed and noted.

    Raises:
        StoreError: the folder holds embeddings by another model, layer, stack or pool,
            or of other data; or another process writes into it.
        InputError: the file cannot be read in parts, an argument is wrong, or hooks are
            set on the lens.

    Example:
        >>> nile = tsfm_lens.bundled("nile")
        >>> done = sweep.write_embeddings(lens, nile, folder / "vectors", layer=1)
        >>> sweep.read_embeddings(done.folder)["id"].unique().tolist()
        ['nile']
    """
    chosen = embedding_stack(lens.wiring, stack)
    embedding_point(chosen, layer)
    check_pool(pool)
    _refuse_hooks(lens)
    is_file = isinstance(source, str | os.PathLike)
    _check_reading(reading, is_file)
    is_integer = isinstance(rows, int | np.integer) and not isinstance(rows, bool)
    if not is_integer or rows < 1:
        raise InputError(
            f"rows={rows!r} is not a number of rows; expected an integer from 1 on"
        )
    if is_file:
        data = _file_digest(source)
    else:
        if not isinstance(source, SeriesBatch) or reading:
            source = as_series(source, **reading)
        data = _batch_digest(source)
    identity = {
        "model": model_fingerprint(lens, ModelConfig(source=lens.model_id)),
        "layer": layer if layer is None else int(layer),
        "stack": chosen.name,
        "pool": pool,
        "data": data,
        "options of reading": {name: repr(reading[name]) for name in sorted(reading)},
        "rows of a part": int(rows),
    }
    store = Store(out, layout=LAYOUT)
    outcome = EmbeddingsOutcome(store.path)
    with store.lock(_PLAN) as is_held:
        if not is_held:
            raise StoreError(
                f"another process writes embeddings into {store.path}; wait for it, or"
                " choose another folder"
            )
        store.remove_leftovers()
        plan = _saved_plan(store)
        if plan is not None:
            _refuse_others(plan, identity, store.path)
        keys = []
        batches = read_parts(source, rows, **reading) if is_file else _cut(source, rows)
        for number, batch in enumerate(batches):
            key = cell_key(embeddings=identity, part=number)
            keys.append(key)
            outcome.add_notes(batch.notes)
            if store.holds([key]):
                outcome.resumed += 1
            else:
                embeddings = embed_batch(lens, batch, layer, stack, pool)
                outcome.add_notes(embeddings.notes)
                # a call that fails before leaves the folder free for another
                if plan is None and number == 0:
                    _write_plan(store, lens, source, identity, [])
                store.write(_table(embeddings, key), [key])
            outcome.series += len(batch)
            progress(outcome.series)
        outcome.parts = len(keys)
        _write_plan(store, lens, source, identity, keys)
    return outcome


def iter_embeddings(folder: str | Path) -> Iterator[pd.DataFrame]:
    """Read embeddings part by part.

    Args:
        folder: of the embeddings, as :func:`write_embeddings` wrote it.

    Yields:
        Frames with the columns that ``lens.embed`` gives.

    Raises:
        StoreError: the folder holds none, or their run was not finished.

    Example:
        >>> series = tsfm_lens.bundled("nile", "elnino")
        >>> done = sweep.write_embeddings(lens, series, folder / "parts", rows=1)
        >>> len(list(sweep.iter_embeddings(done.folder)))
        2
    """
    store = Store(folder, create=False, layout=LAYOUT)
    plan = _saved_plan(store)
    if plan is None or not len(plan.cells):
        raise StoreError(
            f"the embeddings in {store.path} are not finished: run the same command"
            " again, which goes on where it stopped"
        )
    for key in plan.cells["key"]:
        table = store.read_group([key])
        frame = table.drop_columns(["cell", "vector"]).to_pandas()
        texts = frame.select_dtypes("category").columns
        frame[texts] = frame[texts].astype(object)
        vectors = table.column("vector").combine_chunks()
        values = vectors.flatten().to_numpy()
        frame["vector"] = list(values.reshape(len(frame), -1))
        yield frame


def read_embeddings(folder: str | Path) -> pd.DataFrame:
    """Read all embeddings of a folder as one frame.

    Args:
        folder: of the embeddings, as :func:`write_embeddings` wrote it.

    Returns:
        A frame with the columns that ``lens.embed`` gives; ``attrs`` has the origin.

    Raises:
        StoreError: the folder holds none, or their run was not finished.

    Example:
        >>> series = tsfm_lens.bundled("nile")
        >>> done = sweep.write_embeddings(lens, series, folder / "pooled", pool="mean")
        >>> sweep.read_embeddings(done.folder)["end"][0].year
        1971
    """
    frame = pd.concat(iter_embeddings(folder), ignore_index=True)
    plan = _saved_plan(Store(folder, create=False, layout=LAYOUT))
    assert plan is not None
    frame.attrs.update(plan.about)
    return frame


def _check_reading(reading: Mapping[str, Any], is_file: bool) -> None:
    """Refuse options that ``as_series`` lacks, or that need a whole file."""
    own = ("layer", "stack", "pool", "rows", "progress")
    check_unknown(reading, "call of write_embeddings", [*own, *READING])
    if not is_file:
        return
    for name in ("ids", "start", "future"):
        if name in reading:
            raise InputError(
                f"{name}=… does not fit a file that is read in parts; in place of its"
                f" path, give the series that as_series makes with {name}=…"
            )


def _refuse_hooks(lens: Lens) -> None:
    """Refuse hooks, of which the identity of the embeddings knows nothing."""
    has_lasting = any(point.fwd_hooks for point in lens.registry.hooked.values())
    if lens.registry.busy or has_lasting:
        raise InputError(
            "hooks are set on this lens, and a run that resumes would not know of them;"
            " leave their context, or call"
            " lens.reset_hooks(including_permanent=True), or take lens.embed"
        )


def _file_digest(path: Any) -> str:
    file = Path(path).expanduser()
    # the reader names what is wrong with a path
    if not file.is_file():
        next(read_parts(path))
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _batch_digest(batch: SeriesBatch) -> str:
    # numpy leaves numbers out of the text of long arrays, which follow in full
    columns = [[*map(str, getattr(batch, name))] for name in (*COLUMNS, "lengths")]
    digest = hashlib.sha256(repr(columns).encode())
    for values in (*batch.values, *batch.futures):
        if values is not None:
            digest.update(np.ascontiguousarray(values, dtype="<f8").data)
    return digest.hexdigest()


def _cut(batch: SeriesBatch, rows: int) -> Iterator[SeriesBatch]:
    """Yield parts of a batch of about so many steps."""
    for start, stop in cut(batch, max(1, rows // max(batch.lengths))):
        yield batch.select(range(start, stop))


def _saved_plan(store: Store) -> SavedPlan | None:
    if _PLAN in store.plans():
        return store.read_plan(_PLAN)
    return None


def _write_plan(
    store: Store, lens: Lens, source: Any, identity: dict[str, Any], keys: list[str]
) -> None:
    """Write what the embeddings are of; the keys of all parts once they are there."""
    name = str(source) if isinstance(source, str | os.PathLike) else "series"
    about = {**identity, "provenance": lens.provenance(), "source": name}
    store.write_plan(_PLAN, about, pd.DataFrame(), pd.DataFrame({"key": keys}))


def _refuse_others(plan: SavedPlan, identity: dict[str, Any], folder: Path) -> None:
    """Refuse a store of other embeddings, and say in what they differ."""
    for name, expected in identity.items():
        found = plan.about.get(name)
        if found == expected:
            continue
        of_model = plan.about.get("provenance", {}).get("model", "another model")
        values = {
            "model": f"model {of_model!r}, with other weights, settings or versions",
            "data": f"data {plan.about.get('source')!r}, with other content",
        }
        what = values.get(name, f"{name} {found!r} and not {expected!r}")
        raise StoreError(
            f"{folder} holds embeddings of {what}; give a new folder for these, or"
            " repeat the command that began it"
        )


def _table(embeddings: Embeddings, key: str) -> pa.Table:
    """Return the rows of one part as the store takes them."""
    count, width = embeddings.vectors.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    vectors = pa.ListArray.from_arrays(offsets, embeddings.vectors.ravel())
    cell = pa.array([key]).dictionary_encode().take(pa.array(np.zeros(count, int)))
    columns = {name: pa.array(values) for name, values in embeddings.labels.items()}
    return pa.table({"cell": cell, **columns, "vector": vectors})
