"""Tables of all measurements, a theme each."""

from __future__ import annotations

from typing import Any

from sitepages.writing import write
from tsfm_lens.cli.listings import list_measurement_fields
from tsfm_lens.core.registry import THEMES

PAGE = "reference/generated/measurements.md"
_HEAD = "| measurement | probe and figures | source and models |\n|---|---|---|"


def write_measurements() -> None:
    """Write a table a theme: what is measured, by which probe and figures, after whom,
    on which models.
    """
    metadata = list_measurement_fields()
    parts = []
    for theme in THEMES:
        rows = [
            f"| {' | '.join(_cells(item))} |"
            for item in metadata
            if item["theme"] == theme
        ]
        parts += ["\n".join([f"## {theme}\n", _HEAD, *rows])] if rows else []
    write(PAGE, "\n\n".join(parts) + "\n")


def _cells(each: dict[str, Any]) -> list[str]:
    probes, figures = (
        ", ".join(f"`{name}`" for name in each[key]) for key in ("probes", "figures")
    )
    source = each["source"] + (
        f" ({', '.join(each['paper'])})" if each["paper"] else ""
    )
    about = [
        f"{each['summary']} (`{each['kind']}`)",
        f"{probes}<br>{figures}" if probes else figures,
    ]
    return [*about, f"{source}<br>{each['models']}" if source else each["models"]]
