"""What runs on which family of models: read from a tiny model of each architecture."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from sitepages.drawing import CACHE, sources
from sitepages.gallery import find_package
from sitepages.writing import plain, table, write
from tsfm_lens.core.errors import MissingExtraError
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import measurements
from tsfm_lens.hooks import Attention
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.testing import tiny
from tsfm_lens.zoo import checkpoint_names

PAGE = "_cache/capabilities.md"
LENGTHS = "_cache/lengths.md"
COLUMNS = {
    "heads": "attention",
    "sums": "attribution, logit lens",
    "gradients": "gradients",
    "tokens": "token logits",
    "sequences": "induction scores",
    "cross_attention": "kernel regression",
}
"""Columns of the table by the requirement that a tick stands for."""


OTHERS = {
    "covariates": ("**covariates**", "known or past covariates"),
    "series": ("every model of series", NEEDS["series"].words),
    "": ("every model", "nothing"),
}
"""Title and words of further rows of the table of probes, by their requirement."""


def write_capabilities() -> None:
    """Write the table of families, and which probes each column stands for.

    A file of its own has the lengths of embedded models.
    """
    write(PAGE, f"{family_table()}\n\n{probe_table()}\n")
    write(LENGTHS, f"{length_table()}\n")


def length_table() -> str:
    """A row per embedded model: steps that it reads, and that a pass forecasts."""
    lenses = [load(name) for name in checkpoint_names()]
    rows = [
        (f"`{lens.model_id}`", str(lens.context_length), str(lens.adapter.longest_pass))
        for lens in lenses
    ]
    return table(("model", "steps read", "steps forecast in one pass"), rows)


def family_table() -> str:
    """A row per architecture: what can be ablated, ticks, covariates and precision."""
    header = (
        "model",
        "ablation, patching",
        *COLUMNS.values(),
        "covariates",
        "half precision",
    )
    return table(header, [_row(name) for name in architectures()])


def probe_table() -> str:
    """A row per column of the other table: the probes that need it."""
    rows = [
        (f"**{column}**", plain(NEEDS[need].words), ", ".join(find_probes(need)))
        for need, column in COLUMNS.items()
    ]
    rows += [
        (title, plain(words), ", ".join(find_probes(need)))
        for need, (title, words) in OTHERS.items()
    ]
    return table(("column", "stands for", "probes"), rows)


def find_probes(need: str) -> list[str]:
    """References to the probes whose measurement has a requirement; "" is none."""
    return [
        f"{{py:func}}`~tsfm_lens.{find_package(item.function_name)}`"
        for item in measurements().values()
        if item.needs == need and item.of_run and "compression" not in item.kind
    ]


@cache
def read_capabilities(name: str) -> dict[str, Any] | None:
    """Branches, requirements, covariates and precisions of an architecture's models.

    None if its library is not installed.
    """
    key = hashlib.sha256(f"{sources()}{name}".encode()).hexdigest()[:32]
    file = CACHE / "capabilities" / f"{key}.json"
    if not file.exists():
        try:
            lens = load(tiny(name))
        except MissingExtraError:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(describe_lens(lens)))
    return dict(json.loads(file.read_text()))


def describe_lens(lens: Lens) -> dict[str, Any]:
    """Branches, requirements, covariates and precisions of a model."""
    branches: dict[str, None] = {}
    for stack in lens.wiring.stacks:
        for writers in (stack.writers, *stack.exceptions.values()):
            for writer in writers:
                heads = isinstance(writer, Attention)
                branches["heads" if heads else _name_branch(writer.kind)] = None
    return {
        "branches": [*branches],
        "meets": [need for need in COLUMNS if NEEDS[need].met(lens)],
        "covariates": [*lens.adapter.covariates],
        "dtypes": [*lens.adapter.dtypes],
    }


def _name_branch(kind: str) -> str:
    return "MLPs" if kind == "mlp" else kind.replace("_", " ")


def _row(name: str) -> list[str]:
    title = plain(architectures()[name].title)
    found = read_capabilities(name)
    if found is None:
        return [title, "its library is not installed"]
    ticks = ["✓" if need in found["meets"] else "–" for need in COLUMNS]
    return [
        title,
        ", ".join(found["branches"]),
        *ticks,
        ", ".join(found["covariates"]) or "–",
        "✓" if {"bfloat16", "float16"} <= {*found["dtypes"]} else "–",
    ]
