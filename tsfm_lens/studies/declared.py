"""Measurements of results that no run makes, whose texts a YAML file holds by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import yaml

from tsfm_lens.catalogue.entry import Measurement, shown_alone

Shown = tuple[Callable[..., go.Figure], Callable[..., list[str]]]
"""Figure of a result, and the sentences that read it."""


def declared(file: Path, functions: Mapping[str, Shown], **common: Any) -> tuple[Measurement, ...]:
    """Declare measurements by kind: texts from a file, figure and reading from code, the rest in common.

    A ``subject`` that is a text is filled in with the attributes of the result.
    """
    texts = yaml.safe_load(file.read_text(encoding="utf-8"))

    def measurement(kind: str, renderer: Any, reading: Any) -> Measurement:
        fields = {**common, **texts[kind]}
        fields |= {name: tuple(fields[name]) for name in ("variables", "paper")}
        subject = fields["subject"]
        if isinstance(subject, str):
            fields["subject"] = lambda ds: subject.format_map(defaultdict(lambda: "?", ds.attrs))
        return shown_alone(kind, renderer, reading, **fields)

    return tuple(measurement(kind, *shown) for kind, shown in functions.items())
