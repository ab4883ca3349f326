"""Wrong tables by mutation, and what becomes of each: every field of a wiring changed
as its type allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.core.errors import InputError, WiringError
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.names import HEADS, HIDDEN, PATTERN, RESIDUAL
from tsfm_lens.hooks.wiring import (
    Attention,
    Mlp,
    Projection,
    Site,
    Stack,
    Wiring,
    Writer,
)
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing import Case, OracleResult, check_lens
from tsfm_lens.testing.oracles import relative

Mutant = tuple[str, Wiring]
"""(what was changed, the table with the change)."""
Shown = tuple[str, Any]
"""(what it is, a tensor or a plain value)."""


def verdict(
    make_case: Callable[[], Case],
    right: Sequence[Shown],
    oracles: Sequence[Callable[[Case], OracleResult] | None],
) -> str:
    """ "refused", "rejected by …", "equivalent", or "survives: …"."""
    try:
        case = make_case()
    except WiringError:
        return "refused"
    separate = ""
    for oracle in oracles:
        if oracle is None:
            separate = difference(case, right)
            if not separate:
                return "equivalent"
            continue
        (result,) = check_lens(case.lens, case, (oracle,))
        if not result.passed:
            return f"rejected by {result.oracle}"
    return f"survives: {separate}"


def mutants(model: nn.Module, wiring: Wiring) -> Iterator[Mutant]:
    """Yield every table that differs in one field from a given one."""
    everything = _Paths(model, "")
    for name in (
        "embed",
        "unread",
        "unembed",
        "sizes_from",
        "steps_per_readout",
        "sample_major",
        "true_gradients",
    ):
        for what, value in _values(name, getattr(wiring, name), everything):
            yield f"{name}: {what}", replace(wiring, **{name: value})
    for index, stack in enumerate(wiring.stacks):
        for what, variant in _stacks(model, stack, everything):
            stacks = (*wiring.stacks[:index], variant, *wiring.stacks[index + 1 :])
            yield f"{stack.prefix}: {what}", replace(wiring, stacks=stacks)


def find_field(what: str) -> str:
    """Return the field that a mutant changes, without the value that it takes."""
    *position, value = what.split(": ")
    part = value.split(" ")[0]
    fields_of_parts = {field.name for field in (*fields(Site), *fields(Projection))}
    return ": ".join(
        [*position, part] if part in fields_of_parts or not position else position
    )


class _Paths:
    """Modules that one field can name, by class."""

    def __init__(self, model: nn.Module, root: str) -> None:
        self.model = model
        self.root = root
        self.inside = dict(model.get_submodule(root).named_modules())

    def others(self, path: str) -> list[str]:
        """Return paths of other modules of the same class, nearest names first, four at
        most.
        """
        original = self.inside.get(path)
        twins = [
            other
            for other, module in self.inside.items()
            if other != path and type(module) is type(original)
        ]
        return sorted(
            twins, key=lambda other: (abs(other.count(".") - path.count(".")), other)
        )[:4]


def _values(name: str, value: Any, paths: _Paths) -> Iterator[tuple[str, Any]]:
    """Yield other values of one field."""
    if isinstance(value, Site):
        for field in ("module", "side", "arg", "layout"):
            for what, other in _values(field, getattr(value, field), paths):
                yield f"{field} {what}", replace(value, **{field: other})
    elif isinstance(value, Projection):
        for name in [part.name for part in fields(Projection)]:
            for what, other in _values(name, getattr(value, name), paths):
                yield f"{name} {what}", replace(value, **{name: other})
    elif isinstance(value, bool):
        yield str(not value), not value
    elif isinstance(value, int | float):
        if isinstance(value, float):
            steps = (value * 2, value / 2)
        else:
            steps = {value + 1, max(value - 1, 0), 2 * value}
        yield from ((f"{value} -> {other}", other) for other in steps if other != value)
    elif callable(value):
        yield "dropped", None
        yield "doubled", _double(value)
    elif isinstance(value, tuple) and name in ("upstream", "unread"):
        if value:
            yield "()", ()
        for path in paths.others(value[0] if value else "")[:2]:
            yield f"and {path}", (*value, path)
    elif isinstance(value, str):
        yield from _texts(name, value, paths)


def _double(function: Callable[..., Any]) -> Callable[..., Any]:
    def double(*args: Any) -> Any:
        output = function(*args)
        if isinstance(output, tuple):
            return tuple(2 * part for part in output)
        return 2 * output + 1

    return double


def _texts(name: str, value: str, paths: _Paths) -> Iterator[tuple[str, str]]:
    if name == "side":
        yield "flipped", "out" if value == "in" else "in"
    elif name == "over":
        yield "flipped", "variate" if value == "time" else "time"
    elif "layout" in name:
        yield from ((other, other) for other in _exchange_axes(value))
    elif name in ("weight", "bias"):
        yield "missing", f"{value}_of_nothing"
    elif name in ("kind", "name"):
        yield "renamed", f"{value}_renamed"
    else:
        if value:
            yield "''", ""
        yield from ((f"{value} -> {path}", path) for path in paths.others(value))


def _exchange_axes(layout: str) -> Iterator[str]:
    """Yield a layout with two neighbouring axes exchanged, outside of brackets and
    inside.
    """
    axes = re.findall(r"\([^)]*\)|\S+", layout)
    for first in range(len(axes) - 1):
        order = [*axes]
        order[first], order[first + 1] = axes[first + 1], axes[first]
        yield " ".join(order)
    for position, axis in enumerate(axes):
        if axis.startswith("("):
            yield from (
                " ".join([*axes[:position], f"({inner})", *axes[position + 1 :]])
                for inner in _exchange_axes(axis[1:-1])
            )


def _stacks(
    model: nn.Module, stack: Stack, everything: _Paths
) -> Iterator[tuple[str, Stack]]:
    sizes = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp")
    for name in (
        "name",
        "blocks",
        *sizes,
        "ln_final",
        "final_layout",
        "upstream",
        "entry",
        "cached",
    ):
        for what, value in _values(name, getattr(stack, name), everything):
            yield f"{name}: {what}", replace(stack, **{name: value})
    yield (
        "two heads for one",
        replace(stack, n_heads=2 * stack.n_heads, d_head=stack.d_head // 2),
    )
    yield "writers: reversed", replace(stack, writers=stack.writers[::-1])
    for index, row in enumerate(stack.writers):
        rest = (*stack.writers[:index], *stack.writers[index + 1 :])
        yield f"writers: without {row.kind}", replace(stack, writers=rest)
    for layer in stack.exceptions:
        exceptions = {
            other: rows for other, rows in stack.exceptions.items() if other != layer
        }
        yield f"exceptions: without {layer}", replace(stack, exceptions=exceptions)
    plain = next(
        (layer for layer in range(stack.n_layers) if layer not in stack.exceptions), 0
    )
    for index, (what, row) in _rows(stack.writers, _Paths(model, stack.block(plain))):
        rows = (*stack.writers[:index], row, *stack.writers[index + 1 :])
        yield f"{stack.writers[index].kind}.{what}", replace(stack, writers=rows)
    if stack.exceptions:
        layer, rows_of_layer = next(iter(stack.exceptions.items()))
        for index, (what, row) in _rows(
            rows_of_layer, _Paths(model, stack.block(layer))
        ):
            rows = (*rows_of_layer[:index], row, *rows_of_layer[index + 1 :])
            variant = replace(stack, exceptions={**stack.exceptions, layer: rows})
            yield f"{layer}.{rows_of_layer[index].kind}.{what}", variant


def _rows(
    rows: tuple[Writer, ...], paths: _Paths
) -> Iterator[tuple[int, tuple[str, Writer]]]:
    for index, row in enumerate(rows):
        for name in [field.name for field in fields(row)]:
            value = getattr(row, name)
            if isinstance(row, Attention) and name == "keys_from":
                yield (
                    index,
                    (
                        f"{name}: other",
                        replace(row, keys_from="" if value else "encoder"),
                    ),
                )
            elif name == "mix" and value is None:
                yield (
                    index,
                    (f"{name}: doubled", replace(row, mix=lambda _block: (2.0, 1.0))),
                )
            else:
                for what, other in _values(name, value, paths):
                    yield index, (f"{name}: {what}", replace(row, **{name: other}))
        if isinstance(row, Mlp):
            yield (
                index,
                ("pre and post exchanged", replace(row, pre=row.post, post=row.pre)),
            )
            if row.gate is None:
                gate = replace(row.i, gain=1.0)
            else:
                gate = None
            yield (
                index,
                (
                    f"gate: {'forgotten' if row.gate else 'invented'}",
                    replace(row, gate=gate),
                ),
            )
            if row.gate is not None:
                yield (
                    index,
                    ("i and gate exchanged", replace(row, i=row.gate, gate=row.i)),
                )
            yield (
                index,
                ("i: the output matrix", replace(row, i=replace(row.i, module=row.o))),
            )
        elif isinstance(row, Attention):
            yield index, ("q and k exchanged", replace(row, q=row.k, k=row.q))
            yield index, ("k and v exchanged", replace(row, k=row.v, v=row.k))


def behaviour(case: Case) -> Iterator[Shown]:
    """Yield all results of a lens, in one order: sizes, activations, weights, edits,
    variants, rollouts.
    """
    lens = case.lens
    yield from _sizes(lens)
    vocabulary = {*RESIDUAL, *HEADS, *PATTERN, *HIDDEN}
    for name, point in lens.registry.points.items():
        yield (
            f"axes of {name}",
            (
                tuple(axis if axis in vocabulary else "own" for axis in point.axes),
                point.row_axis,
            ),
        )
    with torch.no_grad():
        _, activations = case.captured
        for name in lens.registry.points:
            yield f"activation {name}", activations[name]
        yield from _weights(lens)
        last = lens.wiring.output_stack
        yield (
            "readout",
            lens.readout(
                activations[f"{last.prefix}.{last.n_layers - 1}.hook_resid_post"],
                case.encoded,
            ),
        )
        for name in lens.registry.points:
            with lens.hooks([(name, lambda value, hook: value * 1.25)]):
                yield f"edit of {name}", lens.forward(case.encoded)
        for stack in lens.wiring.stacks:
            variants = [
                Variant.zero(component)
                for component in writers(lens.wiring, stack.name)
            ]
            yield (
                f"variants of {stack.prefix}",
                run_variants(lens, case.encoded, variants),
            )
        yield from _rollout(case)


def _sizes(lens: Lens) -> Iterator[Shown]:
    wiring = lens.wiring
    yield "true_gradients", wiring.true_gradients
    yield "number of hook points", len(lens.registry.points)
    order = [stack.name for stack in wiring.stacks]
    for stack in wiring.stacks:
        yield (
            "sizes",
            (
                stack.n_layers,
                stack.n_heads,
                stack.d_model,
                stack.d_head,
                stack.d_mlp,
                stack.ln_final,
            ),
        )
        for layer in range(stack.n_layers):
            for row in stack.rows(layer):
                if isinstance(row, Attention):
                    if row.keys_from:
                        keys = order.index(row.keys_from)
                    else:
                        keys = -1
                    kv_heads = row.count_heads("k", stack.n_heads)
                    yield (
                        "attention",
                        (row.over, keys, kv_heads, row.row_axis, row.post_norm),
                    )
                else:
                    yield "mlp", (row.gate is None, row.post_norm)


def _weights(lens: Lens) -> Iterator[Shown]:
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for row in stack.rows(layer):
                for fold in (False, True):
                    view: Any = (
                        lens.weights.mlp if isinstance(row, Mlp) else lens.weights.heads
                    )
                    for name, part in vars(
                        view(layer, row.kind, stack.name, fold_norm=fold)
                    ).items():
                        yield f"{stack.prefix}.{layer}.{row.kind}.{name}", part
    for what in ("W_E", "W_U"):
        try:
            yield what, getattr(lens.weights, what)
        except InputError:
            yield what, None
    yield (
        "embedding",
        torch.cat([part.flatten() for part in lens.weights.embedding().values()]),
    )
    yield (
        "unembedding",
        torch.cat([part.flatten() for part in lens.weights.unembedding().values()]),
    )


def _rollout(case: Case) -> Iterator[Shown]:
    lens = case.lens
    draws: dict[str, Any] = (
        {"num_samples": 2, "seed": 1} if lens.adapter.readout != "quantile" else {}
    )
    longer = lens.adapter.rollout in ("cache", "refeed") and lens.adapter.joint_rollout
    if longer:
        horizon = lens.adapter.prediction_length + 1
    else:
        horizon = case.horizon
    names = list(lens.registry.points)
    forecast, steps = lens.run_with_cache(
        case.batch, names_filter=names, rollout=True, horizon=horizon, **draws
    )
    yield "forecast", torch.as_tensor(forecast.quantiles)
    for name in names:
        for call in steps.calls(name):
            yield f"step and position of {name}", (call.step, call.offset)
            yield f"rollout {name}", call.value
    for part in ({"rows": [0]}, {"positions": [1]}):
        with lens.ablate(Component(lens.wiring.output_stack.name, 0), **part):
            yield (
                f"{part}",
                torch.as_tensor(lens.forecast(case.batch, horizon, **draws).quantiles),
            )


def difference(case: Case, reference: Sequence[Shown]) -> str:
    """The first result of a lens that differs from that of the right table, in words;
    "" if there is none.
    """
    try:
        count = 0
        for (name, value), (_, expected) in zip(
            behaviour(case), reference, strict=False
        ):
            count += 1
            if not _same(value, expected):
                return name
        if count == len(reference):
            return ""
        return "less is given"
    except Exception as error:
        return (
            f"{type(error).__name__}:"
            f" {str(error).splitlines()[0] if str(error) else ''}"
        )


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(expected, Tensor):
        if value.shape != expected.shape:
            return False
        value = value.nan_to_num()
        expected = expected.nan_to_num()
        return torch.equal(value, expected) or relative(value, expected) <= 1e-5
    return type(value) is type(expected) and value == expected
