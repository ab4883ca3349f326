"""Tables of all measurements, a question each."""

from __future__ import annotations

from typing import Any

from sitepages.questions import GROUPS
from sitepages.writing import write
from tsfm_lens.cli.listings import list_measurement_fields

PAGE = "reference/generated/measurements.md"
QUESTIONS = {
    "Causes": "Which components does the forecast need?",
    "Inputs": "Which part of the input moved the forecast?",
    "Behaviour": "What do heads do?",
    "Activations": "What is inside, layer by layer?",
    "Weights alone": "What do the weights tell?",
    "Sweeps": "Does it hold over many series and models?",
    "Training": "When did it come about in training?",
    "Theory": "What do theorems say?",
}
"""What a theme answers, in the order of the page."""
_HEAD = "| measurement | probe and figures | source and models |\n|---|---|---|"


def write_measurements() -> None:
    """Write a table a question: what is measured, by which probe and figures, after
    whom, on which models. What people ask for most comes first.
    """
    asked = [question.kind for group in GROUPS.values() for question in group]
    # the last place in the list is that of all others, which keep their order
    metadata = sorted(
        list_measurement_fields(),
        key=lambda item: [*asked, item["kind"]].index(item["kind"]),
    )
    parts = []
    for theme, question in QUESTIONS.items():
        rows = [
            f"| {' | '.join(_cells(item))} |"
            for item in metadata
            if item["theme"] == theme
        ]
        parts += ["\n".join([f"## {question}\n", _HEAD, *rows])] if rows else []
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
