"""The docs are true: the list of measurements is that of the code, and configurations in them are valid."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tsfm_lens import data, probes, viz

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "measurements.md").read_text()
NAMED = set(re.findall(r"`(\w+)`", TEXT))
# parts and helpers of probes, and what writes a figure to a file
HELPERS = {"bin_quantiles", "component_writes", "count_peaks", "row_entropy", "trace_lines"}
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


def test_the_configurations_in_the_docs_and_examples_are_valid() -> None:
    from tsfm_lens.sweep.plan.config import parse_config, read_config

    text = (ROOT / "docs" / "sweeps.md").read_text()
    config = parse_config(yaml.safe_load(text.split("```yaml\n")[1].split("```")[0]))
    assert len(config.data) >= 7
    assert config.variants.heads_at is not None
    assert read_config(ROOT / "examples" / "sweep-demo.yaml").variants.recipes[0].endswith("middle-third.yaml")
