"""The list of measurements in the docs is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from tsfm_lens import data, probes, viz

TEXT = (Path(__file__).parent.parent / "docs" / "measurements.md").read_text()
NAMED = set(re.findall(r"`(\w+)`", TEXT))
# parts and helpers of probes, and what writes a figure to a file
HELPERS = {"Trajectory", "bin_quantiles", "component_writes", "count_peaks", "row_entropy", "trace_lines", "trajectory"}
WRITERS = {"for_print", "save", "forecast_fan"}


def test_every_probe_and_every_figure_is_listed() -> None:
    assert set(probes.__all__) - HELPERS <= NAMED
    assert set(viz.__all__) - WRITERS <= NAMED


def test_every_name_in_the_tables_exists() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| measurement")]
    assert len(rows) > 25
    for row in rows:
        cells = row.split(" | ")
        for room, cell in ((probes, cells[1]), (viz, cells[2])):
            for name in re.findall(r"`(\w+)`", cell):
                assert hasattr(room, name), f"{name} is not in {room.__name__}"
    for name in ("remove_motif", "shift_phase", "swap_season"):
        assert hasattr(data, name)
