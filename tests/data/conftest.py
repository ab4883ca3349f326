"""Folders in the layout of the GIFT-Eval benchmark, written with pyarrow alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

Writer = Callable[..., Path]


@pytest.fixture(scope="session")
def write_folder() -> Writer:
    """Writes a stored dataset: shards of Arrow streams, and state.json that orders them."""

    def write(
        folder: Path,
        series: Sequence[np.ndarray],
        freq: str,
        start: str = "2016-07-01",
        *,
        shards: int = 1,
        ids: Sequence[str] | None = None,
        unit: str = "s",
        backwards: bool = False,
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"data-{k:05d}-of-{shards:05d}.arrow" for k in range(shards)]
        names = names[::-1] if backwards else names
        stamp = pd.Timestamp(start).to_datetime64().astype(f"datetime64[{unit}]")
        several = series[0].ndim > 1
        kind = pa.list_(pa.list_(pa.float32()), len(series[0])) if several else pa.list_(pa.float32())
        for name, rows in zip(names, np.array_split(np.arange(len(series)), shards), strict=True):
            values = [series[row].astype(np.float32) for row in rows]
            columns = {
                "item_id": pa.array([ids[row] if ids else f"item_{row}" for row in rows]),
                "start": pa.array(np.array([stamp] * len(rows)), pa.timestamp(unit)),
                "freq": pa.array([freq] * len(rows)),
                "target": pa.array([list(each) for each in values] if several else values, kind),
            }
            table = pa.table(columns)
            with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
                # two batches a shard, where there are rows enough
                stream.write_table(table, max_chunksize=max(1, (len(rows) + 1) // 2))
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
        return folder

    return write
