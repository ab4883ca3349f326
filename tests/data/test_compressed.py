"""Compressed files are read like plain ones, and one that would fill the memory is
refused before it does.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import read_series
from tsfm_lens.sweep.data.evaluation_sources import gluonts_file

ROWS = 30_000_000
BOMBS = {
    "zeros.csv.gz": b"0\n" * ROWS * 2,
    "one-cell.tsv.gz": b"value\n1\n2\n" + b" " * 2 * ROWS * 2,
    "names.txt.gz": b"a," * ROWS * 2,
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_file_expanding_hugely_is_refused(tmp_path: Path, name: str) -> None:
    """A small file that expands to a huge one is refused."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(BOMBS[name], 1))
    with pytest.raises(InputError, match="gunzip") as caught:
        read_series(path)
    assert str(path) in str(caught.value)


def test_gluonts_dataset_expanding_hugely_is_refused(
    tmp_path: Path,
) -> None:
    """A GluonTS dataset that expands to a huge one is refused."""
    path = tmp_path / "data.json.gz"
    path.write_bytes(gzip.compress(b" " * 4 * ROWS, 1))
    with pytest.raises(InputError, match="gunzip"):
        gluonts_file(path, 2, freq="D")


@pytest.mark.parametrize(
    "values", [np.zeros(20_000), np.arange(20_000.0), np.tile(np.arange(24.0), 1000)]
)
def test_series_that_compress_well_are_read(tmp_path: Path, values: np.ndarray) -> None:
    """A constant series is the smallest of all."""
    text = "load\n" + "".join(f"{value}\n" for value in values)
    (tmp_path / "load.csv.gz").write_bytes(gzip.compress(text.encode()))
    np.testing.assert_array_equal(
        read_series(tmp_path / "load.csv.gz").values[0], values
    )
    entry = json.dumps(
        {"item_id": "a", "start": "2024-01-01", "target": values.tolist()}
    )
    (tmp_path / "load.json.gz").write_bytes(gzip.compress(entry.encode()))
    (found,) = gluonts_file(tmp_path / "load.json.gz", 2, freq="h")
    np.testing.assert_array_equal(found.windows[0].context[0], values[:-2])
