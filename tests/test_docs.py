"""The docs are true: the list of measurements is that of the code, and configurations in them are valid."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tsfm_lens import data, probes, viz

ROOT = Path(__file__).parent.parent


def test_what_the_docs_name_beside_the_catalogue_exists() -> None:
    text = (ROOT / "docs" / "measurements.md").read_text().split("<!-- end of the catalogue -->")[1]
    named = set(re.findall(r"`(\w+)`", text))
    assert {name for name in named if name.endswith(("_motif", "_phase", "_season"))} <= set(dir(data)) | set(
        dir(probes)
    )
    assert {name for name in named if name.endswith(("_curves", "_table", "_errors"))} <= set(viz.__all__)


def test_the_configurations_in_the_docs_and_examples_are_valid() -> None:
    from tsfm_lens.sweep.plan.config import parse_config, read_config

    text = (ROOT / "docs" / "sweeps.md").read_text()
    config = parse_config(yaml.safe_load(text.split("```yaml\n")[1].split("```")[0]))
    assert len(config.data) >= 7
    assert config.variants.heads_at is not None
    assert read_config(ROOT / "examples" / "sweep-demo.yaml").variants.recipes[0].endswith("middle-third.yaml")
