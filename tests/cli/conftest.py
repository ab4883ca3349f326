"""Tests of commands; those of studies are skipped where there are none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

_OF_STUDIES = (
    "reproduce",
    "train nofile",
    "model_rank_dots",
    "caption",
    "short_help",
)
"""Words in the names of tests that use a command or a figure of a study."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if find_spec("tsfm_lens.studies") is None else []:
        if item.path.parent == Path(__file__).parent and any(
            word in item.name for word in _OF_STUDIES
        ):
            item.add_marker(pytest.mark.skip(reason="studies are not installed"))
