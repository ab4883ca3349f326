"""Folders in the layout of the GIFT-Eval benchmark, written with pyarrow alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

Writer = Callable[..., Path]


def _target(series: Sequence[np.ndarray]) -> tuple[pa.Array, dict[str, Any]]:
    """The column as `save_to_disk` stores it, and its entry in dataset_info.json."""
    values = {"dtype": "float32", "_type": "Value"}
    steps = {"feature": values, "_type": "Sequence"}
    if series[0].ndim == 1:
        return pa.array([s.astype(np.float32) for s in series], pa.list_(pa.float32())), steps
    count = len(series[0])
    kind = pa.list_(pa.list_(pa.float32()), count)
    rows = [[row.astype(np.float32) for row in s] for s in series]
    return pa.array(rows, kind), {"feature": steps, "length": count, "_type": "Sequence"}


@pytest.fixture(scope="session")
def write_folder() -> Writer:
    """Writes a stored dataset: shards of Arrow streams, state.json that orders them, dataset_info.json."""

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
        for name, rows in zip(names, np.array_split(np.arange(len(series)), shards), strict=True):
            target, described = _target([series[row] for row in rows])
            columns = {
                "item_id": pa.array([ids[row] if ids else f"item_{row}" for row in rows]),
                "start": pa.array(np.array([stamp] * len(rows)), pa.timestamp(unit)),
                "freq": pa.array([freq] * len(rows)),
                "target": target,
            }
            table = pa.table(columns)
            with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
                # two batches a shard, where there are rows enough
                stream.write_table(table, max_chunksize=max(1, (len(rows) + 1) // 2))
        features = {
            "item_id": {"dtype": "string", "_type": "Value"},
            "start": {"dtype": f"timestamp[{unit}]", "_type": "Value"},
            "freq": {"dtype": "string", "_type": "Value"},
            "target": described,
        }
        info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
        (folder / "dataset_info.json").write_text(json.dumps(info))
        state = {
            "_data_files": [{"filename": name} for name in names],
            "_fingerprint": "0123456789abcdef",
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        (folder / "state.json").write_text(json.dumps(state, indent=2))
        return folder

    return write
