"""Embeddings of a file against plain forwards of the same series, and their memory.

python -m benchmarks.embeddings [--tokens 1000000] [--rounds 3] [--model bolt-nano]

The speed is that of a file from end to end, read, embedded and written, over that of
the model's forwards on the same series in memory, side by side in one process. The
memory is the peak of a process that embeds a quarter, and one that embeds all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.apart import apart, status
from tsfm_lens.compress.timing import ratios
from tsfm_lens.data.file_parts import read_parts
from tsfm_lens.models import load
from tsfm_lens.sweep.embeddings import write_embeddings

STEPS = 512
_LAYER = 1


def make_file(path: Path, series: int) -> None:
    """A long Parquet file of hourly series, written a hundred at a time."""
    rng = np.random.default_rng(0)
    writer = None
    for first in range(0, series, 100):
        number = min(100, series - first)
        stamps = pd.date_range("2024-01-01", periods=STEPS, freq="h")
        values = rng.normal(size=(number, STEPS)).cumsum(1)
        frame = pd.DataFrame(
            {
                "id": np.repeat([f"s{first + k}" for k in range(number)], STEPS),
                "timestamp": np.tile(stamps, number),
                "target": values.ravel(),
            }
        )
        table = pa.Table.from_pandas(frame, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def peak(model: str, file: str, out: str) -> int:
    """Most bytes that a process holds which embeds a file."""
    write_embeddings(load(model), file, out, _LAYER)
    return status("VmHWM")


def main(arguments: list[str] | None = None) -> int:
    """Print the ratio of speeds, and the peaks."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--timed", type=int, default=50_000, help="tokens of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="bolt-nano")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lens = load(given.model)
    per_series = len(lens.embed([np.arange(float(STEPS))]))
    with tempfile.TemporaryDirectory() as folder:
        if given.timed:
            small = Path(folder, "timed.parquet")
            make_file(small, -(-given.timed // per_series))
            batches = list(read_parts(small))
            numbers = count()

            def embed() -> None:
                out = Path(folder, f"timed {next(numbers)}")
                write_embeddings(lens, small, out, _LAYER)

            def forwards() -> None:
                with torch.no_grad():
                    for batch in batches:
                        lens.forward(batch)

            def first_layers() -> None:
                with torch.no_grad():
                    for batch in batches:
                        lens.forward(batch, stop_at_layer=f"encoder.{_LAYER + 1}")

            for name, work in (
                ("whole forwards", forwards),
                ("forwards to the same layer", first_layers),
            ):
                (middle, low, high) = ratios(
                    [work], embed, rounds=given.rounds, clock=time.process_time
                )[0]
                print(
                    f"speed over that of {name}: {middle:.2f} ({low:.2f} to"
                    f" {high:.2f})",
                    flush=True,
                )
        for tokens in (given.tokens // 4, given.tokens):
            file = Path(folder, f"{tokens}.parquet")
            make_file(file, -(-tokens // per_series))
            held = apart(peak, given.model, str(file), str(Path(folder, str(tokens))))
            print(f"peak of {tokens:,} tokens: {held / 2**20:,.0f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
