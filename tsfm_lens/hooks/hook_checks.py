"""Checks for what would make hooks fail silently.

:func:`check_table` compares a wiring with the model: paths, sizes, layouts.
:func:`check_visible_modules` and :func:`check_recomputation` raise where hooks would
not be called, or not be called again: compiled or replaced modules, and gradient
checkpoints. Whether the values at hook points are right is not checked here but by the
oracles of :mod:`tsfm_lens.testing`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from typing import cast

import torch
import torch.utils.checkpoint
from torch import nn

from tsfm_lens.core.errors import HookError, InputError, WiringError
from tsfm_lens.hooks.native import split_axes
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.hooks.wiring import (
    Attention,
    Mlp,
    Projection,
    Site,
    Stack,
    Wiring,
    Writer,
)

_CHECKPOINT = torch.utils.checkpoint.__file__


def check_table(
    model: nn.Module, wiring: Wiring, modules: Mapping[str, nn.Module]
) -> None:
    """Raise WiringError if a path does not exist or a size differs from the model's."""
    for fault in _faults(model, wiring, modules):
        raise WiringError(fault)


def _faults(
    model: nn.Module, wiring: Wiring, modules: Mapping[str, nn.Module]
) -> Iterator[str]:
    """Yield what is wrong with a table.

    A check may fail with an error of its own if one before it has found a fault.
    """
    names = [stack.name for stack in wiring.stacks]
    if len(set(names)) < len(names) or not names:
        yield (
            f"the stacks of {wiring.architecture!r} are named {names}; expected one"
            " name each"
        )
    if wiring.unembed.side != "out":
        yield f"unembed is what {wiring.unembed.module!r} gives, expected side='out'"
    axes = wiring.unembed.layout.replace("series variate", "batch").split()
    if (
        "batch" not in axes
        or len(set(axes)) < len(axes)
        or not set(axes) - {"batch", "pos"}
    ):
        yield (
            f"unembed has the layout {wiring.unembed.layout!r}; expected 'batch' (or"
            " 'series variate'), 'pos' where there is one, and names of its own axes,"
            " each once"
        )
    for field, path in _paths(wiring):
        if path not in modules:
            closest = get_close_matches(path, modules, n=3, cutoff=0.4)
            cause = "Is this a model of another architecture or library version?"
            # torch.compile(module) wraps it, and puts this name into every path below
            if any("_orig_mod" in name for name in modules):
                cause = (
                    "Part of it is wrapped by torch.compile; give the lens what was"
                    " compiled, its _orig_mod."
                )
            yield (
                f"the wiring of {wiring.architecture!r} expects a module {path!r} for"
                f" {field}, but {type(model).__name__} has none. Closest:"
                f" {', '.join(closest) or 'none'}. {cause}"
            )
    for stack in wiring.stacks:
        yield from _faults_of_stack(stack, modules, names)
        for layer in range(stack.n_layers):
            block = f"{stack.prefix}.{layer}"
            kinds = [writer.kind for writer in stack.rows(layer)]
            if not kinds:
                yield (
                    f"{block} has no branch that writes to the stream, expected one or"
                    " more"
                )
            if len(set(kinds)) < len(kinds) or not all(kinds):
                yield (
                    f"{block} has branches of the kinds {kinds}; expected one name each"
                )
            for writer in stack.rows(layer):
                for matrix in _matrices(wiring, stack, writer):
                    if matrix.projection is None:
                        # an MLP's output matrix has a path, and no projection
                        module = cast(Mlp, writer).o
                    else:
                        module = matrix.projection.module
                    yield from _faults_of_matrix(
                        model,
                        f"{block}.{writer.kind}: {matrix.letter}",
                        f"{stack.block(layer)}.{module}",
                        matrix,
                    )


def _paths(wiring: Wiring) -> Iterator[tuple[str, str]]:
    """Yield every path of a table, absolute, with the field that names it.

    Optional paths are included where the table has them.
    """
    yield from (("unembed", wiring.unembed.module), ("embed", wiring.embed))
    yield from (("unread", path) for path in wiring.unread)
    if wiring.sizes_from is not None:
        yield "sizes_from", wiring.sizes_from.module
    for stack in wiring.stacks:
        yield f"blocks of stack {stack.name!r}", stack.blocks
        yield from (("upstream", path) for path in stack.upstream)
        yield from (
            (name, path)
            for name in ("ln_final", "entry")
            if (path := getattr(stack, name))
        )
        for layer in range(stack.n_layers):
            block = stack.block(layer)
            yield f"n_layers={stack.n_layers}", block
            for writer in stack.rows(layer):
                for field, path in _paths_of_writer(writer):
                    yield (
                        f"{field} of {stack.prefix}.{layer}.{writer.kind}",
                        f"{block}.{path}" if path else block,
                    )


def _paths_of_writer(writer: Writer) -> Iterator[tuple[str, str]]:
    """Yield the paths of a branch, relative to its block, with their fields."""
    for name, value in vars(writer).items():
        if isinstance(value, Site | Projection):
            yield name, value.module
        # these are paths themselves, norms optional ones
        elif name in ("module", "o") or (name in ("norm", "post_norm") and value):
            yield name, value


def _faults_of_stack(
    stack: Stack, modules: Mapping[str, nn.Module], names: list[str]
) -> Iterator[str]:
    """Yield what is wrong with the sizes of a stack and its attentions."""
    n_blocks = sum(path.isdigit() for path, _ in modules[stack.blocks].named_children())
    where = f"stack {stack.name!r}"
    branches = [
        writer for layer in range(stack.n_layers) for writer in stack.rows(layer)
    ]
    # a stack without branches gets a fault of its own from _faults(), but its sizes are
    # checked in full
    attends = not branches or any(isinstance(writer, Attention) for writer in branches)
    for name in ("d_model", "n_heads", "d_head"):
        if (attends or name == "d_model") and getattr(stack, name) < 1:
            yield f"{where} has {name}={getattr(stack, name)}, expected at least 1"
    if n_blocks != stack.n_layers:
        yield (
            f"{where} has n_layers={stack.n_layers}, but {stack.blocks!r} holds"
            f" {n_blocks} blocks"
        )
    for layer in sorted(set(stack.exceptions) - set(range(stack.n_layers))):
        yield f"{where} has an exception for layer {layer} of {stack.n_layers}"
    for writer in branches:
        if not isinstance(writer, Attention):
            continue
        if writer.keys_from not in ("", *names):
            yield (
                f"{writer.kind} has keys_from={writer.keys_from!r}; expected one of the"
                f" stacks {names}"
            )
        if writer.n_kv_heads < 0 or stack.n_heads % writer.count_heads(
            "k", stack.n_heads
        ):
            yield (
                f"{writer.kind} has n_kv_heads={writer.n_kv_heads}, which do not divide"
                f" n_heads={stack.n_heads}"
            )
        if not _patterns_fit(writer):
            yield (
                f"{writer.kind} has pattern_layout={writer.pattern_layout!r}; with"
                f" qkv_layout={writer.qkv_layout!r} the same axes are expected, and"
                " 'query key' in the place of the last two"
            )


def _patterns_fit(attention: Attention) -> bool:
    """Return whether the layouts of patterns and of q, k and v fit each other.

    Both must have the heads on the same axis, and tokens first in both or in neither.
    """
    qkv = split_axes(attention.qkv_layout)
    pattern = split_axes(attention.pattern_layout)
    if (
        len(qkv) != len(pattern)
        or pattern[-2:] != ["query", "key"]
        or qkv[-1] != "d_head"
    ):
        return False
    heads = [
        index
        for axes in (qkv, pattern)
        for index, axis in enumerate(axes)
        if axis == "head"
    ]
    return (
        len(heads) == 2
        and heads[0] == heads[1]
        and (qkv[0] == "pos") == (pattern[0] == "pos")
    )


Lengths = dict[str, int]


@dataclass(frozen=True)
class _Matrix:
    """Matrix of a branch, and the lengths of the axes of its output and input.

    The output matrix of an MLP is no projection.
    """

    letter: str
    projection: Projection | None
    outputs: Lengths
    inputs: Lengths


def _matrices(wiring: Wiring, stack: Stack, writer: Writer) -> Iterator[_Matrix]:
    """Yield the matrices of a branch."""
    d_model = {"d_model": stack.d_model}
    d_mlp = {"d_mlp": stack.d_mlp}
    d_head = {"d_head": stack.d_head}
    if isinstance(writer, Mlp):
        yield _Matrix("i", writer.i, d_mlp, d_model)
        if writer.gate is not None:
            yield _Matrix("gate", writer.gate, d_mlp, d_model)
        yield _Matrix("o", None, d_model, d_mlp)
    if not isinstance(writer, Attention):
        return
    source = wiring.stack(writer.keys_from) if writer.keys_from else stack
    for letter, projection in writer.inputs.items():
        n_heads = writer.count_heads(letter, stack.n_heads)
        size_name = "n_heads" if n_heads == stack.n_heads else "n_kv_heads"
        outputs = {size_name: n_heads}
        if writer.d_score and letter != "v":
            outputs["d_score"] = writer.d_score
        else:
            outputs |= d_head
        inputs = {"d_model": source.d_model} if letter in "kv" else d_model
        yield _Matrix(letter, projection, outputs, inputs)
    yield _Matrix("o", writer.o, d_model, {"n_heads": stack.n_heads, **d_head})


def _faults_of_matrix(
    model: nn.Module, where: str, path: str, matrix: _Matrix
) -> Iterator[str]:
    """Yield what is wrong with a weight's shape, (out, in), given the table's sizes."""
    projection = matrix.projection
    weight, _ = parameters(model, path, projection)
    parts = 1
    if projection is not None:
        parts = projection.parts
        if not 0 <= projection.part < parts or (
            ("part" in projection.layout) != (parts > 1)
        ):
            yield (
                f"{where} is part {projection.part} of {parts} with the layout"
                f" {projection.layout!r}; name the axis 'part'"
            )
    # whether rows are in the order of the layout cannot be seen in a shape; the oracles
    # look at that
    shape = parts * prod(matrix.outputs.values()), prod(matrix.inputs.values())
    if tuple(weight.shape) != shape:
        sizes = [
            f"{name}={size}"
            for lengths in (matrix.outputs, matrix.inputs)
            for name, size in lengths.items()
        ]
        if parts > 1:
            sizes.append(f"parts={parts}")
        yield (
            f"{where}: the weight of {path!r} is {tuple(weight.shape)}, but the table"
            f" says {shape} ({', '.join(sizes)})"
        )


def check_additive(wiring: Wiring, stack: Stack) -> None:
    """Refuse a stack whose stream its wiring declares to be no sum of writes."""
    if not stack.sums:
        if stack.name:
            name = f" of stack {stack.name!r}"
        else:
            name = ""
        raise InputError(
            f"the stream{name} of {wiring.architecture!r} is no sum of writes: a norm"
            " follows each sum, so nothing reads a write by itself and no lens or"
            " attribution is defined. Ablation, patching, recording and explanations"
            " of inputs are: run.without, probes.causal_effects,"
            " probes.activation_patching, run.explain"
        )


def check_visible_modules(
    model: nn.Module, modules: Iterable[tuple[str, nn.Module]]
) -> None:
    """Refuse hooks on modules that would not call them.

    These are modules that are compiled, were replaced since the lens was made, or lie
    inside such a module.
    """
    _check_not_compiled("", model)
    # keeps the modules that were looked up, as the paths of a block begin alike
    by_path: dict[str, nn.Module | None] = {"": model}
    for path, module in modules:
        prefix = ""
        for name in path.split("."):
            parent = by_path[prefix]
            prefix = f"{prefix}.{name}" if prefix else name
            if prefix in by_path:
                continue
            child = None if parent is None else parent._modules.get(name)
            by_path[prefix] = child
            if child is not None and prefix != path:
                _check_not_compiled(prefix, child)
        if by_path[path] is not module:
            raise WiringError(
                f"module {path!r} was taken out of the model or replaced after the lens"
                " was made, so a hook on it would do nothing. Make a new lens of the"
                " changed model: load(model)."
            )
        _check_not_compiled(path, module)


def _check_not_compiled(path: str, module: nn.Module) -> None:
    """Refuse a compiled module.

    ``module.compile()``, and ``torch.compile`` of a module or of its forward, are
    recognised by what torch sets on each.
    """
    # module.forward = torch.compile(…) puts the forward into the instance's own dict
    forward = module.__dict__.get("forward", type(module).forward)
    is_wrapped = "_orig_mod" in module._modules or hasattr(
        forward, "_torchdynamo_orig_callable"
    )
    if is_wrapped or module._compiled_call_impl is not None:
        raise WiringError(
            f"{path or 'the model'} ({type(module).__name__}) is compiled, and compiled"
            " code passes hooks by. Set hooks on a model that is not: load it without"
            " torch.compile, or undo it, module._compiled_call_impl = None after"
            " module.compile(), module._orig_mod in place of torch.compile(module),"
            " and del module.__dict__['forward'] after module.forward ="
            " torch.compile(module.forward)."
        )


def check_recomputation(name: str, gradients_at_start: bool) -> None:
    """Refuse a hook in code that gradient checkpointing will run again.

    The second run is part of the backward pass, when the hook may be off already.
    """
    if torch.is_grad_enabled():
        # a non-reentrant checkpoint sets a pair of hooks on the tensors that autograd
        # saves
        is_possible = (
            torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        )
    else:
        # a reentrant checkpoint runs without gradients, in a run that began with them
        is_possible = gradients_at_start
    # both signs have other causes, too, so the stack of callers decides; it is searched
    # only after a sign, since this function runs at every hook point
    if is_possible and _inside_checkpoint():
        raise HookError(
            f"{name} is passed inside a gradient checkpoint: backward() would run that"
            " part of the model again, and after the block without its hooks, which"
            " gives wrong gradients. Turn checkpointing off"
            " (model.gradient_checkpointing_disable(), or model.eval() where it is for"
            " training only), or run under torch.no_grad()."
        )


def _inside_checkpoint() -> bool:
    """Return whether the running code was called by a gradient checkpoint."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
    return False
