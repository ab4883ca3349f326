"""Hook points of a native model as a table, checked against the model before anything runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from difflib import get_close_matches
from math import prod
from typing import Any
from weakref import WeakSet

from torch import nn
from transformer_lens.hook_points import HookPoint

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.names import Point, hook_points
from tsfm_lens.hooks.native import axes_of
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Stack, Wiring, Writer


class HookTable:
    """Hook points of one native model.

    Args:
        model: the native module; it is read, and never edited.
        wiring: its table.

    Attributes:
        modules: those of the model, by path.
        points: by name, in order of execution.
        rank: place of each among all.
        hooked: the TransformerLens hook point of each.
        inside_attention: the points inside an attention call, by path of the attention and what they are.
        targets: the resolved targets of interventions.
        threads: the running thread's dispatcher of hooks.
        dispatchers: those of all threads.

    Raises:
        WiringError: a path of the wiring does not exist in the model, or a size is not the model's; the message names
            the entry and the model's value.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self.model, self.wiring = model, wiring
        self.modules = dict(model.named_modules(remove_duplicate=False))
        _check(self)
        self._stacks = {stack.name: stack for stack in wiring.stacks}
        self.points: dict[str, Point] = hook_points(wiring)
        self.rank = {name: float(place) for place, name in enumerate(self.points)}
        self.hooked: dict[str, HookPoint] = {name: HookPoint() for name in self.points}
        self.inside_attention: dict[tuple[str, str], Point] = {
            (point.site.module, point.how): point for point in self.points.values() if point.how != "site"
        }
        self.targets: dict[Hashable, list[tuple[str, int | None]]] = {}
        self.threads, self.dispatchers = threading.local(), WeakSet[Any]()
        self._factors = {name: factor for name, point in self.points.items() if (factor := self._factor(point))}

    def _factor(self, point: Point) -> Callable[[], float] | None:
        """Return the factor on a branch's output in a block that rescales its stream; None elsewhere."""
        if point.layer < 0 or not point.name.endswith(("hook_out", "hook_result")):
            return None
        stack = self.stack_of(point)
        mix, block = stack.writer(point.kind, point.layer).mix, self.modules[stack.block(point.layer)]
        return None if mix is None else lambda: mix(block)[0]

    def factor(self, point: Point) -> float:
        """Return the factor on a write at a hook point, as the model has it now; 1 where it is added as it is."""
        factor = self._factors.get(point.name)
        return 1.0 if factor is None else factor()

    def stack_of(self, point: Point) -> Stack:
        """Return the stack that a hook point belongs to."""
        return self._stacks[point.stack]

    @property
    def in_use(self) -> bool:
        """True if any hook point has a hook."""
        return any(point.fwd_hooks or point.bwd_hooks for point in self.hooked.values())


def _check(table: HookTable) -> None:
    """Check that every path exists and that every matrix has the sizes that the wiring gives."""
    model, wiring, modules = table.model, table.wiring, table.modules
    names = [stack.name for stack in wiring.stacks]
    if len(set(names)) < len(names) or not names:
        raise WiringError(f"the stacks of {wiring.architecture!r} are named {names}; expected one name each")
    if wiring.unembed.side != "out":
        raise WiringError(f"unembed is what {wiring.unembed.module!r} gives, expected side='out'")
    axes = wiring.unembed.layout.replace("series variate", "batch").split()
    if "batch" not in axes or len(set(axes)) < len(axes) or not set(axes) - {"batch", "pos"}:
        raise WiringError(
            f"unembed has the layout {wiring.unembed.layout!r}; expected 'batch' (or 'series variate'), 'pos' where "
            "there is one, and names of its own axes, each once"
        )
    for where, path in _paths(wiring):
        if path not in modules:
            near = get_close_matches(path, modules, n=3, cutoff=0.4)
            is_wrapped = any("_orig_mod" in name for name in modules)
            cause = (
                "Part of it is wrapped by torch.compile; give the lens what was compiled, its _orig_mod."
                if is_wrapped
                else "Is this a model of another architecture or library version?"
            )
            raise WiringError(
                f"the wiring of {wiring.architecture!r} expects a module {path!r} for {where}, but "
                f"{type(model).__name__} has none. Closest: {', '.join(near) or 'none'}. {cause}"
            )
    for stack in wiring.stacks:
        _check_stack(stack, modules, names)
        for layer in range(stack.n_layers):
            kinds = [row.kind for row in stack.rows(layer)]
            if not kinds:
                raise WiringError(
                    f"{stack.prefix}.{layer} has no branch that writes to the stream, expected one or more"
                )
            if len(set(kinds)) < len(kinds) or not all(kinds):
                raise WiringError(f"{stack.prefix}.{layer} has branches of the kinds {kinds}; expected one name each")
            for row in stack.rows(layer):
                _check_matrices(model, wiring, stack, layer, row)


def _paths(wiring: Wiring) -> Iterator[tuple[str, str]]:
    """Yield every path of a table, absolute, with the field that it stands in; optional ones only where given."""
    yield "unembed", wiring.unembed.module
    yield "embed", wiring.embed
    yield from (("unread", path) for path in wiring.unread)
    if wiring.sizes_from is not None:
        yield "sizes_from", wiring.sizes_from.module
    for stack in wiring.stacks:
        yield f"blocks of stack {stack.name!r}", stack.blocks
        yield from (("upstream", path) for path in stack.upstream)
        yield from ((name, path) for name in ("ln_final", "entry") if (path := getattr(stack, name)))
        for layer in range(stack.n_layers):
            block = stack.block(layer)
            yield f"n_layers={stack.n_layers}", block
            for row in stack.rows(layer):
                for field, path in _paths_of_writer(row):
                    yield f"{field} of {stack.prefix}.{layer}.{row.kind}", f"{block}.{path}" if path else block


def _paths_of_writer(row: Writer) -> Iterator[tuple[str, str]]:
    yield from (("write", row.write.module), ("reads", row.reads.module))
    if isinstance(row, Attention):
        yield from (("module", row.module), *((letter, getattr(row, letter).module) for letter in "qkvo"))
    else:
        yield from (("pre", row.pre.module), ("post", row.post.module), ("i", row.i.module), ("o", row.o))
        if row.gate is not None:
            yield "gate", row.gate.module
    yield from ((name, path) for name in ("norm", "post_norm") if (path := getattr(row, name)))


def _check_stack(stack: Stack, modules: Mapping[str, nn.Module], names: list[str]) -> None:
    n_blocks = sum(path.isdigit() for path, _ in modules[stack.blocks].named_children())
    where = f"stack {stack.name!r}"
    branches = [row for layer in range(stack.n_layers) for row in stack.rows(layer)]
    # a stack without any branch is refused as such
    attends = not branches or any(isinstance(row, Attention) for row in branches)
    for name in ("d_model", "n_heads", "d_head"):
        size, is_required = getattr(stack, name), attends or name == "d_model"
        if is_required and size < 1:
            raise WiringError(f"{where} has {name}={size}, expected at least 1")
        if not is_required and size:
            raise WiringError(f"{where} has {name}={size}, but no branch is an attention; expected 0")
    if stack.d_mlp and not any(isinstance(row, Mlp) for row in branches):
        raise WiringError(f"{where} has d_mlp={stack.d_mlp}, but no branch is an MLP; expected 0")
    if n_blocks != stack.n_layers:
        raise WiringError(f"{where} has n_layers={stack.n_layers}, but {stack.blocks!r} holds {n_blocks} blocks")
    for layer in stack.exceptions:
        if layer not in range(stack.n_layers):
            raise WiringError(f"{where} has an exception for layer {layer} of {stack.n_layers}")
    for row in branches:
        if not isinstance(row, Attention):
            continue
        if row.keys_from not in ("", *names):
            raise WiringError(f"{row.kind} has keys_from={row.keys_from!r}; expected one of the stacks {names}")
        if row.n_kv_heads < 0 or stack.n_heads % row.heads_of("k", stack.n_heads):
            raise WiringError(
                f"{row.kind} has n_kv_heads={row.n_kv_heads}, which do not divide n_heads={stack.n_heads}"
            )
        if not _patterns_fit(row):
            raise WiringError(
                f"{row.kind} has pattern_layout={row.pattern_layout!r}; with qkv_layout={row.qkv_layout!r} the "
                "same axes are expected, and 'query key' in the place of the last two"
            )


def _patterns_fit(row: Attention) -> bool:
    """Return whether patterns have the axes of scores of such queries and keys; names of leading axes are free."""
    qkv, pattern = axes_of(row.qkv_layout), axes_of(row.pattern_layout)
    if len(qkv) != len(pattern) or pattern[-2:] != ["query", "key"] or qkv[-1] != "d_head":
        return False
    heads = [place for axes in (qkv, pattern) for place, axis in enumerate(axes) if axis == "head"]
    return len(heads) == 2 and heads[0] == heads[1] and (qkv[0] == "pos") == (pattern[0] == "pos")


def _check_matrices(model: nn.Module, wiring: Wiring, stack: Stack, layer: int, row: Writer) -> None:
    at, block = f"{stack.prefix}.{layer}.{row.kind}", stack.block(layer)
    d_model, d_mlp, d_head = {"d_model": stack.d_model}, {"d_mlp": stack.d_mlp}, {"d_head": stack.d_head}
    if isinstance(row, Mlp):
        for name, part in (("i", row.i), ("gate", row.gate)):
            if part is not None:
                _check_matrix(model, f"{at}: {name}", f"{block}.{part.module}", part, d_mlp, d_model)
        _check_matrix(model, f"{at}: o", f"{block}.{row.o}", None, d_model, d_mlp)
        return
    source = {"d_model": (wiring.stack(row.keys_from) if row.keys_from else stack).d_model}
    for letter, part in (("q", row.q), ("k", row.k), ("v", row.v)):
        n_heads = row.heads_of(letter, stack.n_heads)
        rows = {"n_heads" if n_heads == stack.n_heads else "n_kv_heads": n_heads}
        rows |= {"d_score": row.d_score} if row.d_score and letter != "v" else d_head
        path = f"{block}.{part.module}"
        _check_matrix(model, f"{at}: {letter}", path, part, rows, d_model if letter == "q" else source)
    heads = {"n_heads": stack.n_heads, **d_head}
    _check_matrix(model, f"{at}: o", f"{block}.{row.o.module}", row.o, d_model, heads)


def _check_matrix(
    model: nn.Module, where: str, path: str, part: Projection | None, out: Mapping[str, int], into: Mapping[str, int]
) -> None:
    """Check a weight's shape (out, in): the products of the sizes on each side."""
    weight, _ = parameters(model, path, part)
    parts = 1 if part is None else part.parts
    if part is not None and (not 0 <= part.part < parts or ("part" in part.layout) != (parts > 1)):
        raise WiringError(
            f"{where} is part {part.part} of {parts} with the layout {part.layout!r}; name the axis 'part'"
        )
    shape = parts * prod(out.values()), prod(into.values())
    if tuple(weight.shape) != shape:
        text = ", ".join(f"{name}={size}" for side in (out, into) for name, size in side.items())
        text += f", parts={parts}" if parts > 1 else ""
        raise WiringError(
            f"{where}: the weight of {path!r} is {tuple(weight.shape)}, but the table says {shape} ({text})"
        )
