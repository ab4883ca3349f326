"""Measurements of results that no run makes, whose texts a YAML file holds by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import yaml

from tsfm_lens.registry import Measurement, measurement

Draw = Callable[..., go.Figure]


class Declarations:
    """Measurements whose texts a file holds by kind, beside facts that are common to all."""

    def __init__(self, file: Path, **common: Any) -> None:
        self._texts, self._common = yaml.safe_load(file.read_text(encoding="utf-8")), common

    def measurement(self, kind: str, **more: Any) -> Measurement:
        """Declare a kind; a ``subject`` that is a text is filled in with the attributes of the result."""
        facts = {**self._common, **self._texts[kind], **more}
        subject, where = facts.get("subject"), facts.pop("where", "")
        if isinstance(subject, str):
            facts["subject"] = lambda ds: subject.format_map(defaultdict(lambda: "?", ds.attrs))
        source = f"{facts.pop('source')}, {where}" if where else facts.pop("source")
        return measurement(kind, **facts | {"source": source, "paper": tuple(facts.get("paper", ()))})

    def figure(self, kind: str, sentences: Callable[..., list[str]]) -> Callable[[Draw], Draw]:
        """Declare a kind with one figure, one table and its sentences; the decorated function draws it."""
        title, variables, table = (self._texts[kind].pop(name) for name in ("shows", "needs", "variables"))
        return self.measurement(kind).figure(title, variables=variables, table=table, sentences=sentences)
