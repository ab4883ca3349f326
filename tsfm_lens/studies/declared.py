"""Measurements of results that no run makes, whose texts a YAML file holds by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import yaml

from tsfm_lens.registry import Measurement, measurement

Draw = Callable[..., go.Figure]


class Declarations:
    """Measurements of a file, each with one figure, one table and its sentences."""

    def __init__(self, file: Path, **common: Any) -> None:
        self._texts, self._common = yaml.safe_load(file.read_text(encoding="utf-8")), common

    def figure(self, kind: str, *, needs: Sequence[str], sentences: Callable[..., list[str]]) -> Callable[[Draw], Draw]:
        """Register the measurement of a kind with the function that draws it."""
        facts = {**self._common, **self._texts[kind]}
        table, shows, subject = facts.pop("variables"), facts.pop("shows"), facts["subject"]
        if isinstance(subject, str):
            facts["subject"] = lambda ds: subject.format_map(defaultdict(lambda: "?", ds.attrs))
        facts |= {"source": f"{facts['source']}, {facts.pop('where')}", "paper": tuple(facts["paper"])}
        entry: Measurement = measurement(kind, **facts)
        return entry.figure(shows, variables=needs, table=table, sentences=sentences)
