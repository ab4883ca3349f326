"""Vocabulary of hook points: every name of a wiring, its axes, and look-up by glob.

Read :func:`hook_points`, which derives all points of a model from its table, then
:class:`Point` and :func:`select`. Names are TransformerLens's; older and shorter forms
of them are translated in :mod:`tsfm_lens.hooks.tl_names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

from transformer_lens.hook_points import HookPoint

from tsfm_lens.core.errors import WiringError, unknown_name
from tsfm_lens.hooks.tl_names import Key, find_point, full_name
from tsfm_lens.hooks.wiring import Attention, Inputs, Mix, Mlp, Site, Stack, Wiring

# axes of the values at hook points, as hooks see them
RESIDUAL = ("batch", "pos", "d_model")
HEADS = ("batch", "pos", "head", "d_head")
RESULT = ("batch", "pos", "head", "d_model")
PATTERN = ("batch", "head", "query", "key")
HIDDEN = ("batch", "pos", "d_mlp")

_GLOB = re.compile(r"[*?[]")
# the stream before each branch of a block, in order
RESIDUAL_NAMES = (
    "hook_resid_pre",
    "hook_resid_mid",
    "hook_resid_mid2",
    "hook_resid_mid3",
)


@dataclass(frozen=True)
class Point:
    """One hook point of one model.

    Attributes:
        name: as TransformerLens has it.
        axes: of its value, in the order in which a user sees them.
        how: "site" for the input or output of a module; "q", "k", "v", "scores",
            "pattern" or "z" for that value inside an attention call; "result" for the
            writes of heads, which the native model does not compute.
        site: the module, its side and the layout of its value.
        stack, layer, kind: names of stack and branch, and the layer; -1 in front of the
            first layer and behind the last.
        over: whether the attention is between time steps or between variates.
        row_axis: axis that counts series; that of queries in patterns between series.
        aside: hook point of the write to which edits are added, if this value is only
            the input of a branch.
        heads: number of distinct heads of keys or values, which a library may repeat
            for the query heads; 0 elsewhere.
        mix: function of the block that returns the factors on a write and the stream.
        joined: for a value inside an attention call, as in
            :class:`tsfm_lens.hooks.wiring.Attention`.
    """

    name: str
    axes: tuple[str, ...]
    how: str
    site: Site
    stack: str
    layer: int = -1
    kind: str = ""
    over: Literal["time", "variate"] = "time"
    row_axis: int = 0
    aside: str = ""
    heads: int = 0
    mix: Mix | None = None
    joined: Callable[..., Inputs] | None = None


def hook_points(wiring: Wiring) -> dict[str, Point]:
    """Return all hook points of a model by name.

    Within each stack they are in order of execution.
    """
    points = [point for stack in wiring.stacks for point in _stack_points(stack)]
    readout_axes = wiring.unembed.layout.replace("series variate", "batch").split()
    # batch, position where the readout has one, then the remaining axes in the order of
    # the table
    readout_axes.sort(key=lambda axis: {"batch": 0, "pos": 1}.get(axis, 2))
    points.append(
        Point(
            "unembed.hook_out",
            tuple(readout_axes),
            "site",
            wiring.unembed,
            wiring.output_stack.name,
        )
    )
    return {point.name: point for point in points}


def _stack_points(stack: Stack) -> Iterator[Point]:
    """Yield the hook points of a stack in order of execution."""
    name_prefix = ""
    if stack.name:
        name_prefix = f"{stack.name}."
    first = stack.rows(0)[0]
    last = stack.rows(stack.n_layers - 1)[0]
    if first.aside:
        aside = f"{stack.prefix}.0.{first.kind}.hook_out"
    else:
        aside = ""
    yield Point(
        f"{name_prefix}hook_embed",
        RESIDUAL,
        "site",
        first.reads.within(stack.block(0)),
        stack.name,
        aside=aside,
    )
    for layer in range(stack.n_layers):
        block = stack.block(layer)
        prefix = f"{stack.prefix}.{layer}"
        sublayers = stack.rows(layer)
        if len(sublayers) > len(RESIDUAL_NAMES):
            kinds = ", ".join(writer.kind for writer in sublayers)
            raise WiringError(
                f"layer {layer} of stack {stack.name!r} has {len(sublayers)} branches"
                f" ({kinds}), expected at most {len(RESIDUAL_NAMES)}; wire two that"
                " stand side by side as one, or split the block into two layers"
            )
        # not strict, as most blocks have fewer branches than there are names
        for name, writer in zip(RESIDUAL_NAMES, sublayers, strict=False):
            branch = f"{prefix}.{writer.kind}"
            location = (stack.name, layer, writer.kind)
            if writer.aside:
                aside = f"{branch}.hook_out"
            else:
                aside = ""
            yield Point(
                f"{prefix}.{name}",
                RESIDUAL,
                "site",
                writer.reads.within(block),
                stack.name,
                layer,
                aside=aside,
            )
            if isinstance(writer, Attention):
                yield from _attention_points(writer, block, branch, location)
            elif isinstance(writer, Mlp):
                yield Point(
                    f"{branch}.hook_pre",
                    HIDDEN,
                    "site",
                    writer.pre.within(block),
                    *location,
                )
                yield Point(
                    f"{branch}.hook_post",
                    HIDDEN,
                    "site",
                    writer.post.within(block),
                    *location,
                )
            yield Point(
                f"{branch}.hook_out",
                RESIDUAL,
                "site",
                writer.write.within(block),
                *location,
                mix=writer.mix,
            )
        # the stream after the last branch is what the block itself gives
        post = Site(block, layout=sublayers[0].reads.layout)
        yield Point(
            f"{prefix}.hook_resid_post", RESIDUAL, "site", post, stack.name, layer
        )
    if stack.ln_final:
        norm = Site(stack.ln_final, layout=stack.final_layout or last.reads.layout)
        yield Point(
            f"{name_prefix}ln_final.hook_normalized", RESIDUAL, "site", norm, stack.name
        )


def _attention_points(
    writer: Attention, block: str, branch: str, location: tuple[str, int, str]
) -> Iterator[Point]:
    """Yield the hook points inside an attention, in order of execution."""
    qkv = Site(f"{block}.{writer.module}", layout=writer.qkv_layout)
    pattern = Site(f"{block}.{writer.module}", layout=writer.pattern_layout)
    if writer.z_inside:
        z = qkv
    else:
        z = Site(f"{block}.{writer.o.module}", "in", 0, writer.z_layout)
    fields: dict[str, Any] = {"over": writer.over, "joined": writer.joined}
    for letter in ("q", "k", "v"):
        # some libraries repeat shared keys and values for every query head before the
        # call, and hooks see each head once; queries are never repeated
        if letter == "q":
            n_distinct = 0
        else:
            n_distinct = writer.n_kv_heads
        name = f"{branch}.hook_{letter}"
        yield Point(name, HEADS, letter, qkv, *location, **fields, heads=n_distinct)
    fields["row_axis"] = writer.row_axis
    yield Point(
        f"{branch}.hook_attn_scores", PATTERN, "scores", pattern, *location, **fields
    )
    yield Point(
        f"{branch}.hook_pattern", PATTERN, "pattern", pattern, *location, **fields
    )
    if writer.gate is not None:
        # the gate reads the input of q; in its output, heads take the place of d_model
        layout = (writer.x_layout or writer.stream_layout).replace(
            "d_model", writer.gate.layout
        )
        yield Point(
            f"{branch}.hook_gate",
            HEADS,
            "site",
            Site(f"{block}.{writer.gate.module}", layout=layout),
            *location,
        )
    yield Point(
        f"{branch}.hook_z", HEADS, "z" if writer.z_inside else "site", z, *location
    )
    yield Point(f"{branch}.hook_result", RESULT, "result", z, *location, mix=writer.mix)


def get_name(point: Any) -> Any:
    """Return the name of a hook point object; return any other key as it is."""
    if isinstance(point, HookPoint):
        return point.name
    return point


def select(
    names: Iterable[str], pattern: Key, *, what: str = "hook point", hint: str = ""
) -> list[str]:
    """Return the names that equal a pattern or match it as a glob.

    If there are none, return the one hook point that the key stands for in
    TransformerLens, see :func:`full_name`. A component selects the hook point of its
    write, see :func:`find_point`.
    """
    available = list(names)
    pattern = get_name(pattern)
    if isinstance(pattern, str):
        if what == "hook point":
            component_point = find_point(pattern)[0]
            if component_point and any(map(_glob_test(component_point), available)):
                pattern = component_point
        if pattern in available:
            return [pattern]
        matches = list(filter(_glob_test(pattern), available))
        if matches:
            return matches
        if _GLOB.search(pattern):
            hint = (
                f"A * stands for one part of a name, ** for any number. {hint}".strip()
            )
            raise unknown_name(what, pattern, available, hint=hint)
    name = full_name(available, pattern)
    if name is None:
        raise unknown_name(what, pattern, nearest(available, pattern), hint=hint)
    return [name]


def nearest(names: Iterable[str], key: Key) -> list[str]:
    """Return the names whose last parts are closest to a key's.

    Of these, only names at the layer, stack and attention of the key are returned, or
    at those that are spelt most like them. If no name is close, all are returned.
    """
    available = list(names)
    short, *qualifiers = key if isinstance(key, tuple) else (key,)
    # unknown_name() itself compares a full name with the others
    if (
        not available
        or not isinstance(short, str)
        or (isinstance(key, str) and "." in key)
    ):
        return available
    last_parts = {name: name.rsplit(".", 1)[-1] for name in available}
    near = get_close_matches(
        f"hook_{short.removeprefix('hook_')}",
        sorted(set(last_parts.values())),
        n=1,
        cutoff=0.7,
    )
    matches = [name for name in available if near and last_parts[name] == near[0]]
    words = sorted({word for name in matches for word in name.split(".")})
    closest = matches
    for qualifier in qualifiers:
        text = str(qualifier)
        # a stack is the start of a word, as in "decoder_blocks"
        if not any(word.startswith(text) for word in words):
            text = next(iter(get_close_matches(text, words, n=1)), text)
        closest = [
            name
            for name in closest
            if any(word.startswith(text) for word in name.split("."))
        ] or closest
    return closest or available


def _glob_test(pattern: str) -> Callable[[str], bool]:
    """Return a test of names by a glob, part by part."""
    globs = pattern.split(".")
    return lambda name: _matches(name.split("."), globs)


def _matches(parts: list[str], globs: list[str]) -> bool:
    """Return whether the parts of a name match those of a glob."""
    if not globs:
        return not parts
    if globs[0] == "**":
        return any(
            _matches(parts[start:], globs[1:]) for start in range(len(parts) + 1)
        )
    return (
        bool(parts)
        and fnmatchcase(parts[0], globs[0])
        and _matches(parts[1:], globs[1:])
    )
