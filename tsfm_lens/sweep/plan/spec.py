"""One variant of a model by its content, and the lines of a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.errors import unknown_name
from tsfm_lens.hooks.component import Component, components
from tsfm_lens.models.ablating import KINDS, knock_outs, reference_activations
from tsfm_lens.models.lens import Lens
from tsfm_lens.sweep.statistics.pooling import PLAIN

TAGS = (
    *("part", "first", "last", "layer", "kind", "head", "order"),
    *("ablated", "of", "recipe", "selection", "seed", "mlps"),
)


@dataclass(frozen=True)
class VariantSpec:
    """Components taken out of a model, whatever the variant is called and in whatever order they are named.

    Build it with :func:`variant_spec`, which expands globs.

    Attributes:
        components: names of branches and heads, each once, in model order; () is the plain model. A whole layer
            is written as its branches. All heads of a branch are not the branch: the output projection's bias stays.
        how: what takes their place: "zero", "mean", "resample" or "noise".
        seed: of resample and noise, else 0.
    """

    components: tuple[str, ...] = ()
    how: str = "zero"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in KINDS:
            raise unknown_name("way to ablate", self.how, KINDS)
        # nothing taken out is the plain model, however it is not taken out
        if not self.components:
            object.__setattr__(self, "how", "zero")
        if self.how not in ("resample", "noise"):
            object.__setattr__(self, "seed", 0)

    @property
    def id(self) -> str:
        """ "plain", or 16 hexadecimal digits of a hash over the content."""
        if not self.components:
            return PLAIN
        content = json.dumps([sorted(set(self.components)), self.how, self.seed])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def to_variant(self, lens: Lens, reference: Any = None, horizon: int | None = None) -> Variant:
        """Return the variant as interventions on a lens.

        Args:
            lens: the model.
            reference: for mean and resample: activations (recorded once for many variants), or series.
            horizon: of the forecasts along which reference series are recorded.

        Raises:
            InputError: a reference is needed and none is given.
            UnknownNameError: a component does not exist.
        """
        if not self.components:
            return Variant(PLAIN, ())
        options: dict[str, Any] = {}
        if self.how in ("mean", "resample"):
            options["reference"] = reference_activations(lens, self.how, reference, horizon)
        if self.how in ("resample", "noise"):
            options["seed"] = self.seed
        return Variant(self.id, tuple(knock_outs(lens, self.components, self.how, **options)))


@dataclass(frozen=True)
class PlanEntry:
    """One line of a plan: a variant of a model, and why it is run.

    Attributes:
        model: name of the model in the configuration.
        family: "plain", "layers", "groups", "ranges", "heads", "head_counts", "heads_per_layer", "components",
            "recipes" or "random".
        label: for readers.
        spec: what is taken out; several entries may share one.
        tags: coordinates of the entry in its family, keys from ``TAGS``.
    """

    model: str
    family: str
    label: str
    spec: VariantSpec
    tags: dict[str, str | int | float] = field(default_factory=dict)


def variant_spec(lens: Lens, patterns: Iterable[str | Component], how: str = "zero", seed: int = 0) -> VariantSpec:
    """Specify the variant without some components, or globs of them, in any order; overlaps do not matter.

    Raises:
        UnknownNameError: a pattern matches nothing, or no such ``how``.
    """
    pattern_list = list(patterns)
    subset: set[Component] = set()
    for component in lens.components(*pattern_list) if pattern_list else []:
        rows = lens.wiring.stack(component.stack).rows(component.layer)
        subset |= (
            {component} if component.kind else {Component(component.stack, component.layer, row.kind) for row in rows}
        )
    if how != "noise":
        # what replaces a branch's write leaves nothing of its heads; noise is added to it
        subset = {c for c in subset if c.head is None or Component(c.stack, c.layer, c.kind) not in subset}
    return VariantSpec(tuple(str(component) for component in components(lens.wiring) if component in subset), how, seed)


def plan_frame(entries: Iterable[PlanEntry]) -> pd.DataFrame:
    """Return a plan as a table, one row per entry; None where an entry has no such tag."""
    rows = [
        (
            e.model,
            e.family,
            e.label,
            e.spec.id,
            list(e.spec.components),
            e.spec.how,
            e.spec.seed,
            *map(e.tags.get, TAGS),
        )
        for e in entries
    ]
    columns = ["model", "family", "label", "variant", "components", "how", "spec_seed", *TAGS]
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"spec_seed": int})
