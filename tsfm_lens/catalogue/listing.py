"""Lists of the catalogue for the command line and for the documentation."""

from __future__ import annotations

from typing import Any

from tsfm_lens.catalogue.entry import THEMES, Measurement
from tsfm_lens.catalogue.registry import measurements

EVERY = "every model"


def facts() -> list[dict[str, Any]]:
    """List plain values of every measurement: kind, theme, about, probes, figures, source, paper, models."""
    return [
        {
            "kind": each.kind,
            "theme": each.theme,
            "about": each.about,
            "probes": list(each.probes),
            "figures": list(dict.fromkeys(figure.name for figure in each.figures)),
            "source": each.source,
            "paper": list(each.paper),
            "models": _models(each),
        }
        for each in measurements().values()
    ]


def _models(each: Measurement) -> str:
    """Name the models that it is of, in words."""
    if each.across:
        return "several models"
    if each.compute is None:
        return {"Theory": "no model", "Training": "models trained for it"}.get(each.theme, "sweeps")
    return each.needs.models if each.needs is not None else EVERY


def as_markdown() -> str:
    """Write a table per theme: what is measured, by which probe and figure, after whom, on which models."""
    parts = []
    for theme in THEMES:
        rows = [each for each in facts() if each["theme"] == theme]
        if not rows:
            continue
        lines = [
            f"## {theme}",
            "",
            "| measurement | kind | probe | figure | source | models |",
            "|---|---|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(_cells(each))} |" for each in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cells(each: dict[str, Any]) -> list[str]:
    code = {key: ", ".join(f"`{name}`" for name in each[key]) for key in ("probes", "figures")}
    source = each["source"] + (f" ({', '.join(each['paper'])})" if each["paper"] else "")
    return [each["about"], f"`{each['kind']}`", code["probes"], code["figures"], source, each["models"]]
