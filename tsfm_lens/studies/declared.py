"""Measurements of results that no run makes, whose texts a YAML file holds by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tsfm_lens.registry import Measurement, declarations, measurement

Draw = Callable[..., go.Figure]


class Declarations:
    """Measurements whose texts a file holds by kind, beside facts that are common to all."""

    def __init__(self, file: Path, **common: Any) -> None:
        self._texts = {kind: dict(texts) for kind, texts in declarations(file).items()}
        self._common = common

    def measurement(self, kind: str, **more: Any) -> Measurement:
        """Declare a kind; a ``subject`` that is a text is filled in with the attributes of the result."""
        facts = {**self._common, **self._texts[kind], **more}
        subject, where = facts.get("subject"), facts.pop("where", "")
        if isinstance(subject, str):
            facts["subject"] = lambda ds: subject.format_map(
                defaultdict(lambda: "?", ds.attrs)
            )
        source = f"{facts['source']}, {where}" if where else facts["source"]
        return measurement(kind, **facts | {"source": source})

    def figure(
        self, kind: str, sentences: Callable[..., list[str]]
    ) -> Callable[[Draw], Draw]:
        """Declare a kind with one figure, one table and its sentences; the decorated function draws it."""
        title, variables, table = (
            self._texts[kind].pop(name) for name in ("shows", "needs", "variables")
        )
        return self.measurement(kind).figure(
            title, variables=variables, table=table, sentences=sentences
        )
