"""Attributes of results that come from a model's weights, without a run."""

from __future__ import annotations

from tsfm_lens.models.lens import Lens


def describe(lens: Lens, kind: str, title: str, source: str, **parameters: object) -> dict[str, object]:
    """Return kind, title, source, provenance and the probe's parameters; results of runs take ``run.describe``."""
    return {"kind": kind, "title": title, "source": source, **lens.provenance(), **parameters}
