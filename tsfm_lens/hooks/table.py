"""Check of a wiring table against its model: paths, names and sizes, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from torch import nn

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Stack, Wiring, Writer


def check_table(model: nn.Module, wiring: Wiring) -> dict[str, nn.Module]:
    """Check that every path exists and that every matrix has the sizes that the table gives.

    Returns:
        The model's modules by path.

    Raises:
        WiringError: names the row, its entry, and the model's value.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
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
            raise WiringError(
                f"the wiring of {wiring.architecture!r} expects a module {path!r} for {where}, but "
                f"{type(model).__name__} has none. Closest: {', '.join(near) or 'none'}. "
                + ("Part of it is wrapped by torch.compile; " if is_wrapped else "")
                + ("give the lens what was compiled, its _orig_mod." if is_wrapped else "")
                + ("" if is_wrapped else "Is this a model of another architecture or library version?")
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
                _check_row(model, wiring, stack, layer, row)
    return modules


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
                for field, path in _row_paths(row):
                    yield f"{field} of {stack.prefix}.{layer}.{row.kind}", f"{block}.{path}" if path else block


def _row_paths(row: Writer) -> Iterator[tuple[str, str]]:
    yield "write", row.write.module
    yield "reads", row.reads.module
    if isinstance(row, Attention):
        yield "module", row.module
        yield from ((letter, getattr(row, letter).module) for letter in "qkvo")
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
    for layer in range(stack.n_layers):
        for row in stack.attentions(layer):
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
    qkv, pattern = _axes(row.qkv_layout), _axes(row.pattern_layout)
    if len(qkv) != len(pattern) or pattern[-2:] != ["query", "key"] or qkv[-1] != "d_head":
        return False
    heads = [place for axes in (qkv, pattern) for place, axis in enumerate(axes) if axis == "head"]
    return len(heads) == 2 and heads[0] == heads[1] and (qkv[0] == "pos") == (pattern[0] == "pos")


def _axes(layout: str) -> list[str]:
    """Split a layout into its axes, a bracket as one."""
    out, depth = [""], 0
    for letter in layout:
        depth += (letter == "(") - (letter == ")")
        if letter == " " and depth == 0:
            out.append("")
        else:
            out[-1] += letter
    return out


def _check_row(model: nn.Module, wiring: Wiring, stack: Stack, layer: int, row: Writer) -> None:
    at, block = f"{stack.prefix}.{layer}.{row.kind}", stack.block(layer)
    if isinstance(row, Mlp):
        for name, part in (("i", row.i), ("gate", row.gate)):
            if part is not None:
                sizes = {"d_mlp": stack.d_mlp, "d_model": stack.d_model}
                _expect(model, f"{at}: {name}", f"{block}.{part.module}", part, ("d_mlp", "d_model"), sizes)
        sizes = {"d_model": stack.d_model, "d_mlp": stack.d_mlp}
        _expect(model, f"{at}: o", f"{block}.{row.o}", None, ("d_model", "d_mlp"), sizes)
        return
    source = wiring.stack(row.keys_from) if row.keys_from else stack
    for letter, part in (("q", row.q), ("k", row.k), ("v", row.v)):
        n_heads = row.heads_of(letter, stack.n_heads)
        sizes = {"n_heads" if n_heads == stack.n_heads else "n_kv_heads": n_heads}
        sizes |= {"d_score": row.d_score} if row.d_score and letter != "v" else {"d_head": stack.d_head}
        sizes["d_model"] = stack.d_model if letter == "q" else source.d_model
        _expect(model, f"{at}: {letter}", f"{block}.{part.module}", part, (*list(sizes)[:2], "d_model"), sizes)
    sizes = {"d_model": stack.d_model, "n_heads": stack.n_heads, "d_head": stack.d_head}
    path = f"{block}.{row.o.module}"
    _expect(model, f"{at}: o", path, row.o, ("d_model", "n_heads", "d_head"), sizes, first=1)


def _expect(
    model: nn.Module,
    where: str,
    path: str,
    part: Projection | None,
    names: tuple[str, ...],
    sizes: Mapping[str, int],
    *,
    first: int | None = None,
) -> None:
    """Check a weight's shape (out, in): the first names multiply to the rows, the others to the columns."""
    weight, _ = parameters(model, path, part)
    split = first if first is not None else len(names) - 1
    parts = 1 if part is None else part.parts
    if part is not None and (not 0 <= part.part < parts or ("part" in part.layout) != (parts > 1)):
        raise WiringError(
            f"{where} is part {part.part} of {parts} with the layout {part.layout!r}; name the axis 'part'"
        )
    rows = parts * _product(names[:split], sizes)
    columns = _product(names[split:], sizes)
    if tuple(weight.shape) != (rows, columns):
        text = ", ".join(f"{name}={sizes[name]}" for name in names) + (f", parts={parts}" if parts > 1 else "")
        raise WiringError(
            f"{where}: the weight of {path!r} is {tuple(weight.shape)}, but the table says {(rows, columns)} ({text})"
        )


def _product(names: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    out = 1
    for name in names:
        out *= sizes[name]
    return out
