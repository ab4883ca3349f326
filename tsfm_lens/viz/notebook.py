"""Notebook view of a run or a forecast: the figure, and a line of facts."""

from __future__ import annotations

from html import escape
from typing import Any

from tsfm_lens.registry import as_dataset
from tsfm_lens.viz.forecast import forecast_fan
from tsfm_lens.viz.select import shown


def as_html(thing: Any) -> str:
    """Draw the fan of the first series of a run or forecast, under a line that says what it is.

    Args:
        thing: what has a dataset of kind "forecast" or "run".
    """
    data = as_dataset(thing)
    attrs, ids = data.attrs, [str(name) for name in data["series"].values]
    facts = [str(attrs.get("model", "")), shown(ids), f"{data.sizes['step']} steps"]
    if data.sizes.get("draw"):
        facts.append(f"{data.sizes['draw']} sample paths, seed {attrs.get('seed', 0)}")
    if "truth" not in data:
        facts.append("truth unknown")
    seconds = sum(float(value) for name, value in attrs.items() if str(name).startswith("seconds_"))
    if seconds:
        facts.append(f"{seconds:.1f} s")
    figure: str = forecast_fan(data)._repr_html_()
    return f"<p>{escape(' · '.join(fact for fact in facts if fact))}</p>{figure}"
