"""Numbers of series and variants of a forward that run at once, so that they fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tsfm_lens.hooks.edit import acts_by_place, resolve
from tsfm_lens.hooks.interventions import Intervention
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.batching import cut, generous_run
from tsfm_lens.models.capturing import Keeping, Run, items_at_once
from tsfm_lens.models.lens import Lens


def forward_parts(
    lens: Lens,
    encoded: Encoded,
    variants: Sequence[Sequence[Intervention]],
    max_rows: int,
    memory: int | str | None,
    recording: Callable[[], AbstractContextManager[Any]],
) -> tuple[list[Encoded], int]:
    """Return the parts of a batch that run one after the other, and the rows of variants side by side in each.

    Args:
        lens: the model.
        encoded: the batch.
        variants: the interventions of each.
        max_rows: rows side by side at most.
        memory: see ``lens.forecast``.
        recording: records a plain run for the variants.

    Raises:
        InputError: one item, or a batch that must stay whole, does not fit.
    """
    items, rows = encoded.n_items, len(encoded.rows)
    per_item, abreast = -(-len(encoded.batch) // items), max(1, min(len(variants), max_rows // rows))
    places, whole = _places(lens, variants)
    # a packed sequence shows every variate's tokens
    tokens = sum(len(spans) for spans in encoded.spans.values()) * (1 if encoded.packed else per_item)

    def one() -> None:
        item = encoded.part(*cut(encoded.batch, 1)[0])
        with lens.running(len(item.rows)), recording():
            lens.adapter.run(item.inputs)

    words = f"a forward of {len(encoded.batch)} series under interventions"
    run = Run(words, items, items * abreast, generous_run(lens, tokens, 1, per_item), 0, one, per_item=per_item)
    no_activations = Keeping(lens, (), {})
    fit = items_at_once(no_activations, run, memory, lambda: lens.edit(*places.values()))
    if whole and fit < items:
        uncut = f"give fewer series at once, since what is done at {whole[0]} may look at several of them"
        fit = items_at_once(
            no_activations, replace(run, at_once=items, uncut=uncut), memory, lambda: lens.edit(*places.values())
        )
    if fit == items * abreast:
        return [encoded], max_rows
    number = -(-items // fit)
    if number == 1:
        return [encoded], fit * rows // items
    ranges = cut(encoded.batch, -(-items // number) * per_item)
    return [encoded.part(*place) for place in ranges], fit * rows // items


def _places(lens: Lens, variants: Sequence[Sequence[Intervention]]) -> tuple[dict[str, Intervention], list[str]]:
    """Return an intervention for each hook point of the variants, and the points where rows cannot be taken apart."""
    registry = lens.registry
    places: dict[str, Intervention] = {}
    whole = dict.fromkeys(registry.session.across_rows())
    for variant in variants:
        for intervention in variant:
            for name, _head in resolve(registry, intervention):
                places.setdefault(name, intervention)
                if not acts_by_place(intervention, registry.points[name]):
                    whole[name] = None
    return places, list(whole)
