"""Components: the writers to the residual stream.

A :class:`Component` is what attributions, ablations and sweeps name. Read it, then
:func:`select_components`, which finds components by name or glob. Hook points, of which
a component's write is one, are in :mod:`tsfm_lens.hooks.names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tsfm_lens.core.errors import UnknownNameError
from tsfm_lens.hooks.names import select
from tsfm_lens.hooks.tl_names import find_component
from tsfm_lens.hooks.wiring import Attention, Wiring

_HINT = (
    "`lens.components()` lists them all; a target is a component"
    " (decoder.3.cross_attn.5) or a hook point."
)
_LABEL = re.compile(
    r"\(?L?(?P<layer>\d+)(?:\.(?P<kind>[a-z_]+))?(?:\.H?|H|, )(?P<head>\d+)\)?"
)


@dataclass(frozen=True, order=True)
class Component:
    """Head, branch or layer that writes to the residual stream.

    Printed, they are ``decoder.3.cross_attn.5``, ``decoder.3.mlp`` and ``decoder.3``.
    In a model with one stack, the stack's name is omitted: ``3.attn.5``.

    Attributes:
        stack: "encoder", "decoder", or "" in a model with one stack.
        layer: index from 0.
        kind: "self_attn", "cross_attn", "attn", "mlp"; None for the whole layer.
        head: index from 0; None for the whole branch.
    """

    stack: str
    layer: int
    kind: str | None = None
    head: int | None = None

    def __repr__(self) -> str:
        return f"Component.parse({str(self)!r})"

    def __str__(self) -> str:
        parts = [self.stack, self.layer, self.kind, self.head]
        return ".".join(str(part) for part in parts if part not in (None, ""))

    @classmethod
    def parse(cls, text: str) -> Component:
        """Read a component from its printed form.

        Args:
            text: printed form, such as "decoder.3.cross_attn.5".

        Returns:
            The component, which need not exist in a model.

        Raises:
            UnknownNameError: the text is no component.
        """
        parts = text.split(".")
        # in a model with one stack the name begins with the layer
        if parts[0].isdigit():
            stack = ""
        else:
            stack = parts.pop(0)
        numbers = parts[:1] + parts[2:]
        if not 1 <= len(parts) <= 3 or not all(number.isdigit() for number in numbers):
            raise UnknownNameError(
                f"no component {text!r}. A component reads like decoder.3.cross_attn.5"
                " (a head), decoder.3.mlp (a branch) or decoder.3 (a layer)."
            )
        kind = None
        if len(parts) > 1:
            kind = parts[1]
        head = None
        if len(parts) > 2:
            head = int(parts[2])
        return cls(stack, int(parts[0]), kind, head)

    @property
    def level(self) -> str:
        """Size of the component: "head", "branch" or "layer"."""
        if self.kind is None:
            return "layer"
        if self.head is None:
            return "branch"
        return "head"


def components(wiring: Wiring) -> Iterator[Component]:
    """Iterate over every component of a model.

    Args:
        wiring: wiring of the model, as ``lens.wiring``.

    Yields:
        The layer itself, then each of its branches, followed by the branch's heads;
        stacks and layers in model order.

    Example:
        >>> [str(component) for component in hooks.components(lens.wiring)][:3]
        ['encoder.0', 'encoder.0.self_attn', 'encoder.0.self_attn.0']
    """
    for stack in wiring.stacks:
        for layer in range(stack.n_layers):
            yield Component(stack.name, layer)
            for writer in stack.rows(layer):
                yield Component(stack.name, layer, writer.kind)
                if isinstance(writer, Attention):
                    for head in range(stack.n_heads):
                        yield Component(stack.name, layer, writer.kind, head)


_BY_NAME: WeakKeyDictionary[Wiring, dict[str, Component]] = WeakKeyDictionary()
"""Components of each wiring by name; wirings never change."""


def select_components(wiring: Wiring, *patterns: str | Component) -> list[Component]:
    """Select components by name or glob, in model order and each once.

    A glob matches part by part: ``decoder.*.mlp`` is every MLP of the decoder,
    ``decoder.*`` every whole layer. The hook point of a write also names its component:
    ``decoder_blocks.2.mlp.hook_out`` is ``decoder.2.mlp``. So does the label of a head:
    ``L2.cross_attn.H0``, or ``L2H0`` where a layer has one attention.

    Args:
        wiring: wiring of the model, as ``lens.wiring``.
        patterns: names, globs, labels of heads, hook points or components.

    Returns:
        The components that match, in model order.

    Raises:
        UnknownNameError: a pattern matches nothing, or a label several heads; the
            message has the nearest components.

    Example:
        >>> len(hooks.select_components(lens.wiring, "decoder.*.cross_attn.*"))
        12
    """
    # naming hundreds of heads anew would cost more than most selections do
    if wiring not in _BY_NAME:
        _BY_NAME[wiring] = {
            str(component): component for component in components(wiring)
        }
    by_name = _BY_NAME[wiring]
    if len(patterns) == 1 and str(patterns[0]) in by_name:
        return [by_name[str(patterns[0])]]
    names: set[str] = set()
    for pattern in flat_names(patterns):
        labels = _labelled(by_name, str(pattern))
        if len(labels) > 1:
            raise UnknownNameError(
                f"{str(pattern)!r} could be {', '.join(labels)}; say which by its name"
            )
        names.update(
            labels
            or select(
                by_name, find_component(str(pattern)), what="component", hint=_HINT
            )
        )
    return [component for name, component in by_name.items() if name in names]


def flat_names(names: Iterable[Any]) -> list[Any]:
    """Return names of components, those of a list among them one by one."""
    flat: list[Any] = []
    for name in names:
        if isinstance(name, list):
            flat += name
        else:
            flat.append(name)
    return flat


def _labelled(by_name: Mapping[str, Component], text: str) -> list[str]:
    """Return the heads that a label means.

    Labels are "L2.cross_attn.H0", "2.cross_attn.0", "L1H2", "1.2" or "(1, 2)".
    """
    if text in by_name or (match := _LABEL.fullmatch(text)) is None:
        return []
    indices = (int(match["layer"]), int(match["head"]))
    heads = {
        name: component
        for name, component in by_name.items()
        if (component.layer, component.head) == indices
    }
    return [name for name, head in heads.items() if match["kind"] in (None, head.kind)]


def writers(wiring: Wiring, stack: str | None = None) -> list[Component]:
    """Return every head and every MLP that writes to a stack's stream.

    Args:
        wiring: wiring of the model, as ``lens.wiring``.
        stack: name of the stack; the output stack if None.

    Returns:
        The components in model order, the heads of an attention one by one.

    Example:
        >>> str(hooks.writers(lens.wiring)[-1])
        'decoder.2.mlp'
    """
    chosen = wiring.stack(stack)
    return [
        Component(chosen.name, layer, writer.kind, head)
        for layer in range(chosen.n_layers)
        for writer in chosen.rows(layer)
        for head in (
            range(chosen.n_heads) if isinstance(writer, Attention) else (None,)
        )
    ]
