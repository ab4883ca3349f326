"""Variants of planted models that tell methods apart.

:func:`add_cancelling_pair` adds two heads that cancel each other, :func:`split_head`
divides the work of one head among four, :func:`add_second_way` lets either of two heads
suffice, and :func:`read_period_before` lets a copy come from the wrong period, beside a
head that looks at the right one. Weights are edited; the card follows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.models import Lens, load
from tsfm_lens.zoo.planted.card import Attends, Card, PlantedPart
from tsfm_lens.zoo.planted.draft import N_TRIALS, rule_error
from tsfm_lens.zoo.planted.patches import PATCH
from tsfm_lens.zoo.planted.planting import Planted
from tsfm_lens.zoo.planted.rules import SeasonalCopy, draw_contexts

__all__ = [
    "add_cancelling_pair",
    "add_second_way",
    "read_period_before",
    "split_head",
]

GAIN = 3.0
"""Factor on what a cancelling pair writes.

It is so large that neither head can take the place of the head that they copy.
"""
QUARTERS = 4
"""Heads that :func:`split_head` divides the work of one among."""


def add_cancelling_pair(planted: Planted) -> Planted:
    """Let two idle heads write 3 and -3 times what a head of the mechanism writes.

    The forecast stays as it is. Without either of the two it changes more than without
    the head that they copy. Idle heads are those without a task.

    Args:
        planted: a model, which is not changed; the pair goes beside the first head of
            its mechanism that has two heads without a task in its layer.

    Returns:
        The new model, with the pair on its card, in the role "cancelling".

    Raises:
        InputError: no head of the mechanism has two heads without a task beside it.
    """
    model, lens = _copy_model(planted)
    component, idle = _with_idle_heads(lens, planted, 2)
    names = _names(component, idle)
    parts = []
    for head, name, partner, gain in zip(
        idle, names, reversed(names), (GAIN, -GAIN), strict=True
    ):
        _copy_head(lens, component, head, gain)
        does = f"writes {gain:g} times what {component} writes"
        parts.append(
            PlantedPart(component=name, role="cancelling", does=does, cancels=partner)
        )
    name = f"{planted.card.name}-cancelling"
    return Planted(model, _with_parts(planted.card, parts, name=name))


def split_head(planted: Planted) -> Planted:
    """Let four heads each write a quarter of what one head of the mechanism writes.

    Args:
        planted: a model, which is not changed; the first head of its mechanism with
            three heads without a task in its layer is split.

    Returns:
        The new model, with the four heads on its card.

    Raises:
        InputError: no head of the mechanism has three heads without a task beside it.
    """
    model, lens = _copy_model(planted)
    component, idle = _with_idle_heads(lens, planted, QUARTERS - 1)
    for head in idle:
        _copy_head(lens, component, head, 1 / QUARTERS)
    with torch.no_grad():
        head_views(lens, component)[-1].div_(QUARTERS)
    names = [str(component), *_names(component, idle)]
    card = _share_task(planted.card, names, f"writes 1/{QUARTERS} of what one head")
    return finish(model, card, "split")


def add_second_way(planted: Planted) -> Planted:
    """Let two heads do the same task, of which either suffices.

    In Chronos it is the copying head: the last norm takes the length of what is copied
    away, so that a second copy changes nothing. In the gate of Chronos-Bolt, two heads
    bring the flag: the gate is as open with one flag as with two.

    Args:
        planted: "seasonal-copy" in Chronos, or "gate" in Chronos-Bolt; it is not
            changed.

    Returns:
        The new model, with both heads on its card, in the role "mechanism".

    Raises:
        InputError: the model is neither of the two, or has no head without a task.
    """
    kind = (planted.card.mechanism, planted.card.architecture)
    match kind:
        case ("seasonal-copy", "chronos"):
            return _double_copy(planted)
        case ("gate", "chronos-bolt"):
            return _double_flag(planted)
    raise InputError(
        f"{' in '.join(kind)} has no task that either of two heads can do; choose"
        " seasonal-copy in chronos or gate in chronos-bolt"
    )


def _double_copy(planted: Planted) -> Planted:
    """Add a second copying head."""
    model, lens = _copy_model(planted)
    (last,) = (sender for sender, to in planted.card.edges if to == "output")
    component, idle = _with_idle_heads(lens, planted, 1, [last])
    _copy_head(lens, component, idle[0], 1.0)
    names = [last, *_names(component, idle)]
    card = _share_task(planted.card, names, "suffices alone: either of two heads")
    return finish(model, card, "either")


def _double_flag(planted: Planted) -> Planted:
    """Let one head fetch the values, and two others the flag."""
    model, lens = _copy_model(planted)
    card = planted.card
    (fetching,) = (
        name for name in card.components("mechanism") if ".cross_attn." in name
    )
    component, idle = _with_idle_heads(lens, planted, 2, [fetching])
    for head in idle:
        _copy_head(lens, component, head, 1.0)
    # the flag is in the channels after those of the copied values
    unused: dict[int | None, slice] = {component.head: slice(PATCH, None)}
    unused |= dict.fromkeys(idle, slice(PATCH))
    with torch.no_grad():
        for number, channels in unused.items():
            *_, values, outputs = head_views(lens, replace(component, head=number))
            values[channels] = 0.0
            outputs[:, channels] = 0.0
    names = _names(component, idle)
    senders = {to: sender for sender, to in card.edges if sender.endswith(".mlp")}
    gates = [to for sender, to in card.edges if sender == fetching and to != "output"]
    decides = senders[fetching]
    edges = [edge for edge in card.edges if edge != (decides, fetching)]
    for name in names:
        edges += [(decides, name), *((name, gate) for gate in gates)]
    does = "fetches open from the REG token: either of two heads suffices"
    parts = [PlantedPart(component=name, role="mechanism", does=does) for name in names]
    (looks,) = (one for one in card.attends if one.component == fetching)
    attends = [looks.model_copy(update={"component": name}) for name in names]
    card = _with_parts(
        _retell(card, fetching, "fetches last from the REG token"),
        parts,
        edges=tuple(edges),
        attends=(*card.attends, *attends),
    )
    return finish(model, card, "either")


def read_period_before(planted: Planted) -> Planted:
    """Let a seasonal copy read one period too early, beside a head that looks right.

    On a series that repeats itself nobody sees the difference in the forecast. A head
    without a task looks exactly one period back, and does what it did before: it
    writes noise.

    Args:
        planted: "seasonal-copy" in Chronos-Bolt or Chronos that reads an older part of
            the context (one stretch), which is not changed. In Chronos-Bolt, the place
            that it reads is moved to the period before the last.

    Returns:
        The new model, whose rule reads an earlier period, with the head as a decoy.

    Raises:
        InputError: the model is another one, or its copy reads the last period.
    """
    card = planted.card
    rule = card.rule
    if not isinstance(rule, SeasonalCopy) or len(rule.ago) != 1 or not rule.ago[0]:
        raise InputError(
            f"{card.name} copies no single older period; plant seasonal-copy with"
            " reads='old'"
        )
    if card.architecture not in ("chronos", "chronos-bolt"):
        raise InputError(
            f"{card.name} has no position biases to set; plant seasonal-copy in"
            " chronos or chronos-bolt"
        )
    model, lens = _copy_model(planted)
    stack = "encoder."
    inside = [name for name in card.components("mechanism") if name.startswith(stack)]
    component, idle = _with_idle_heads(lens, planted, 1, inside)
    bias = _first_attention(lens, component).relative_attention_bias.weight
    strength = float(bias.detach().abs().max())
    period = rule.period
    unit = 1
    if card.architecture == "chronos-bolt":
        unit = PATCH
        rule = rule.model_copy(update={"ago": (period,)})
        back = 2 * period // PATCH
        _look_back(lens, component, component.head, back, strength)
        card = _look_elsewhere(card, component, back, rule)
    _look_back(lens, component, idle[0], period // unit, strength)
    decoy = PlantedPart(
        component=_names(component, idle)[0],
        role="decoy",
        does="looks one period back and writes noise",
    )
    looks = Attends(
        component=decoy.component, query="every token", back=(period // unit,), weight=1
    )
    card = _with_parts(card, [decoy], attends=(*card.attends, looks))
    return finish(model, card, "shortcut")


def _look_back(
    lens: Lens, component: Component, head: int | None, back: int, strength: float
) -> None:
    """Let a head number of a stack look only so many tokens back, in place."""
    # it imports the library of the format, which this package does without
    from tsfm_lens.zoo.planted.chronos import find_bucket

    module = _first_attention(lens, component)
    table = module.relative_attention_bias.weight
    with torch.no_grad():
        table[:, head] = 0.0
        table[find_bucket(module, -back, both_ways=True), head] = strength


def _look_elsewhere(
    card: Card, component: Component, back: int, rule: SeasonalCopy
) -> Card:
    """Write down that heads of this number look so many patches back."""

    def same_number(name: str) -> bool:
        other = Component.parse(name)
        return (other.stack, other.kind, other.head) == (
            component.stack,
            component.kind,
            component.head,
        )

    attends = tuple(
        one.model_copy(update={"back": (back,)}) if same_number(one.component) else one
        for one in card.attends
    )
    card = _retell(
        card, str(component), f"copies the patch {back} back to the REG token"
    )
    context = (rule.period + rule.ago[0], card.context[1])
    return card.model_copy(
        update={"attends": attends, "rule": rule, "context": context}
    )


def _share_task(card: Card, names: Sequence[str], does: str) -> Card:
    """Give the task of the first head to all of them, with its edges and attention."""
    first = names[0]
    (task,) = (part for part in card.parts if part.component == first)
    parts = [
        task.model_copy(update={"component": name, "does": f"{does} {task.does}"})
        for name in names[1:]
    ]
    edges = []
    for sender, receiver in card.edges:
        senders = names if sender == first else [sender]
        receivers = names if receiver == first else [receiver]
        edges += [(one, other) for one in senders for other in receivers]
    attends = []
    for looks in card.attends:
        heads = names if looks.component == first else [looks.component]
        attends += [looks.model_copy(update={"component": head}) for head in heads]
    return _with_parts(
        _retell(card, first, f"{does} {task.does}"),
        parts,
        edges=tuple(edges),
        attends=tuple(attends),
    )


def _with_parts(card: Card, parts: Sequence[PlantedPart], **fields: Any) -> Card:
    """Add parts to a card, and set other fields of it."""
    every = sort_parts([*card.parts, *parts])
    return card.model_copy(update={"parts": every, **fields})


def _retell(card: Card, component: str, does: str) -> Card:
    """Say of one part what it does now."""
    parts = {part.component: part for part in card.parts}
    parts[component] = parts[component].model_copy(update={"does": does})
    return card.model_copy(update={"parts": tuple(parts.values())})


def sort_parts(parts: Sequence[PlantedPart]) -> tuple[PlantedPart, ...]:
    return tuple(sorted(parts, key=lambda part: part.component))


def _copy_model(planted: Planted) -> tuple[Any, Lens]:
    """Copy the native model, and open the copy, in which weights are set in place."""
    model = copy.deepcopy(planted.model)
    return model, load(model, check=False)


def _with_idle_heads(
    lens: Lens, planted: Planted, count: int, among: Sequence[str] | None = None
) -> tuple[Component, list[int]]:
    """Find the first head of the mechanism with so many idle heads beside it."""
    if among is None:
        among = planted.card.components("mechanism")
    for component in map(Component.parse, among):
        idle = list(_idle_heads(lens, planted, component))
        if len(idle) >= count:
            return component, idle[:count]
    raise InputError(
        f"no head of {planted.card.name} has {count} heads without a task beside it"
    )


def _idle_heads(lens: Lens, planted: Planted, component: Component) -> Iterator[int]:
    """Yield heads of the same attention that have no task.

    Where layers share a position bias, a head is idle if it has no task in any layer.
    """
    if component.head is None:
        return
    # copying a head sets a column of this table, which the heads of that number read in
    # all layers
    shares_bias = _position_bias(lens, component) is not None
    with_task = [Component.parse(part.component) for part in planted.card.parts]
    busy = {
        other.head
        for other in with_task
        if (other.stack, other.kind) == (component.stack, component.kind)
        and (shares_bias or other.layer == component.layer)
    }
    for head in range(lens.wiring.stack(component.stack).n_heads):
        if head not in busy:
            yield head


def _first_attention(lens: Lens, component: Component) -> Any:
    """Return the native attention of a kind in the first layer of a stack."""
    stack = lens.wiring.stack(component.stack)
    attention = stack.attention(component.kind, 0)
    return lens.adapter.model.get_submodule(f"{stack.block(0)}.{attention.module}")


def _position_bias(lens: Lens, component: Component) -> nn.Embedding | None:
    """Return the table (bucket, head) of a stack's position biases, if it has one.

    Its first layer holds it for all layers.
    """
    module = _first_attention(lens, component)
    return getattr(module, "relative_attention_bias", None)


def head_views(lens: Lens, component: Component) -> list[Tensor]:
    """Return views of a head's q, k, v (channel, stream) and o (stream, channel)."""
    layer, kind = component.layer, component.kind
    assert kind is not None
    weights = [
        lens.weights.projection(layer, kind, letter, component.stack)[0]
        for letter in "qkv"
    ]
    stack = lens.wiring.stack(component.stack)
    weights.append(head_output_weights(lens.adapter.model, stack, layer, kind))
    return [weight[component.head].T for weight in weights]


def _copy_head(lens: Lens, component: Component, head: int, gain: float) -> None:
    """Give another head of the layer the weights of a component, in place.

    Its output weights are those of the component times the gain. In one layer, both
    heads read the same stream, so that what they write differs by the gain alone.
    """
    other = replace(component, head=head)
    with torch.no_grad():
        views = zip(head_views(lens, component), head_views(lens, other), strict=True)
        for weight, new in views:
            new.copy_(weight)
        new.mul_(gain)
        table = _position_bias(lens, component)
        if table is not None:
            table.weight[:, head] = table.weight[:, component.head]


def _names(component: Component, heads: Sequence[int]) -> list[str]:
    return [str(replace(component, head=head)) for head in heads]


def finish(model: Any, card: Card, suffix: str) -> Planted:
    """Measure the error of the edited model, and name it."""
    contexts = draw_contexts(card.rule, N_TRIALS, card.context, seed=card.seed)
    error = rule_error(load(model, check=False), card.rule, contexts, card.horizon)
    return Planted(
        model,
        card.model_copy(update={"name": f"{card.name}-{suffix}", "error": error}),
    )
