"""Models of which parts write nothing, made by their weights: what ablations are held
against.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch

from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models import Lens, load


def silenced(lens: Lens, components: Iterable[Component]) -> Lens:
    """A copy of an encoder-decoder model in which the output weights of heads and MLPs
    are zero.
    """
    edited = load(copy.deepcopy(lens.native), check=False)
    for component in components:
        stack = edited.wiring.stack(component.stack)
        row = stack.writer(component.kind, component.layer)
        columns = slice(None)
        path = row.o
        if isinstance(row, Attention):
            first = component.head * stack.d_head
            columns = slice(first, first + stack.d_head)
            path = row.o.module
        block = f"{stack.block(component.layer)}.{path}"
        with torch.no_grad():
            edited.adapter.model.get_submodule(block).weight[:, columns] = 0
    return edited
