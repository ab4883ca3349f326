"""Wiring of a model as a table: where each activation is in the native model.

Read :class:`Wiring`, then :class:`Stack`; a stack has one row per writer to the
residual stream: :class:`Attention`, :class:`Mlp` or :class:`Branch`. A table holds
names and sizes only: it does not touch a model, and whether it fits one is checked in
:mod:`tsfm_lens.hooks.hook_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch

from tsfm_lens.core.errors import InputError, unknown_name


@dataclass(frozen=True)
class Site:
    """Place of an activation: a module's output, or one of its inputs.

    Attributes:
        module: dotted path; inside a block it is relative to the block.
        side: "in" is the tensor that enters the module, "out" the one that leaves it.
        arg: position (or keyword) of the tensor among the inputs, or in a tuple of
            outputs.
        layout: einops axes of the native tensor, e.g. "batch pos (head d_head)";
            "series variate" in place of "batch" where a model keeps them apart.
    """

    module: str
    side: Literal["in", "out"] = "out"
    arg: int | str = 0
    layout: str = "batch pos d_model"

    def within(self, block: str) -> Site:
        """Return the same site with its module path made absolute.

        Args:
            block: path of the module within which the site is.

        Returns:
            The site, whose module is named from the model on.
        """
        path = block
        if self.module:
            path = f"{block}.{self.module}"
        return Site(path, self.side, self.arg, self.layout)


@dataclass(frozen=True)
class Projection:
    """One weight matrix and the order of heads in its rows or columns.

    Attributes:
        module: path of the linear layer, relative to the block.
        layout: einops axes of the side that holds the heads, e.g. "(head d_head)" or
            "(part d_head head)".
        part: index along the axis "part" of a fused projection.
        parts: length of that axis.
        gain: factor that the layer puts on its weights and bias (a unit-scaled one has
            1/sqrt(fan_in)).
        weight, bias: names of the parameters; ``nn.MultiheadAttention`` itself holds
            ``in_proj_weight`` and ``in_proj_bias``.
    """

    module: str
    layout: str = "(head d_head)"
    part: int = 0
    parts: int = 1
    gain: float = 1.0
    weight: str = "weight"
    bias: str = "bias"


Mix = Callable[[Any], tuple[float, float]]
"""Function of a native block that returns two factors.

They multiply a branch's write, and the stream that it is added to.
"""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a module, positional and by keyword."""


@dataclass(frozen=True)
class Attention:
    """One attention writer of a block.

    Attributes:
        kind: its name in the vocabulary: "attn", "self_attn" or "cross_attn".
        module: the attention module, which calls scaled dot-product attention exactly
            once.
        write: the tensor that the residual stream receives.
        reads: the residual stream just before this branch.
        q, k, v, o: projections; the input of ``o`` holds the heads side by side.
        z_layout: einops axes of that input.
        keys_from: the stack whose last stream the keys and values are computed from;
            "" for its own.
        over: "time" if tokens attend to tokens of their own series, "variate" if to
            other series.
        qkv_layout, pattern_layout: einops axes inside the attention call. In patterns
            over variates, the axes "query" and "key" count variates, and there is one
            row for each token.
        x_layout: einops axes of the input of q, k and v; "" if they are those of
            ``stream_layout``.
        norm, post_norm: paths of the norm before the branch, and of that between ``o``
            and the stream; "" for none.
        mix: factors of a block that rescales the stream, None for a plain sum.
        aside: whether ``reads`` is a value that only the branch reads, so that an edit
            there must be added to ``write`` to reach the stream.
        n_kv_heads: number of key and value heads, if query heads share them (head h
            reads key head ``h // (n_heads / n_kv_heads)``); 0 if they do not.
        z_inside: whether z is read from what the attention call returns, because ``o``
            is never called as a module (``nn.MultiheadAttention``); ``z_layout`` then
            only serves ``stream_layout``.
        d_score: features of a head's queries and keys, if not ``d_head``; else 0.
        gate: a layer that reads the same input as ``q``; z is the sigmoid of its output
            times pattern · v. None for no gate.
        joined: for a module that calls attention twice, a function from its inputs to
            others with which it calls attention once, with a mask of
            :func:`tsfm_lens.hooks.attention_capture.in_two`; else None.
    """

    kind: str
    module: str
    write: Site
    reads: Site
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    z_layout: str = "batch pos (head d_head)"
    keys_from: str = ""
    over: Literal["time", "variate"] = "time"
    qkv_layout: str = "batch head pos d_head"
    pattern_layout: str = "batch head query key"
    x_layout: str = ""
    norm: str = ""
    post_norm: str = ""
    mix: Mix | None = None
    aside: bool = False
    n_kv_heads: int = 0
    z_inside: bool = False
    d_score: int = 0
    gate: Projection | None = None
    joined: Callable[..., Inputs] | None = None

    @property
    def stream_layout(self) -> str:
        """Axes of the output of ``o``.

        They are those of its input, with d_model in place of the heads.
        """
        # the brackets around "head" may hold more than d_head: "(part d_head head)"
        return re.sub(r"\([^)]*\bhead\b[^)]*\)", "d_model", self.z_layout)

    def count_heads(self, letter: str, n_heads: int) -> int:
        """Return the number of heads of queries, keys, values or gates.

        Args:
            letter: "q", "k", "v" or "gate".
            n_heads: number of query heads of the stack.

        Returns:
            The number of heads; keys and values may have fewer than queries.
        """
        # the gate multiplies what each query head has read
        if letter in ("q", "gate"):
            return n_heads
        return self.n_kv_heads or n_heads

    @property
    def inputs(self) -> dict[str, Projection]:
        """Projections of the branch's input by name.

        They are "q", "k", "v", and "gate" if there is one.
        """
        projections = {"q": self.q, "k": self.k, "v": self.v}
        if self.gate:
            projections["gate"] = self.gate
        return projections

    @property
    def row_axis(self) -> int:
        """Axis of the patterns that counts series.

        Where series attend to each other, that is the axis of queries.
        """
        # (pos, head, query, key): with tokens as rows, the queries are series
        if self.pattern_layout.startswith("pos "):
            return 2
        return 0


@dataclass(frozen=True)
class Mlp:
    """One MLP writer of a block.

    Attributes:
        write: the tensor that the residual stream receives.
        reads: the residual stream just before this branch.
        pre, post: the hidden layer before and after the activation function.
        o: path of the output matrix; with its weights and bias at zero, the write must
            be zero.
        i: the input matrix; of a gated MLP, the part that goes through the activation
            function.
        gate: the other input matrix of a gated MLP.
        o_gain: factor that the output layer puts on its weights and bias.
        kind: its name in the vocabulary.
        norm, post_norm, mix, aside: as in :class:`Attention`.
        act: the activation function between ``pre`` and ``post``, as transformers names
            it; "" if not said.
    """

    write: Site
    reads: Site
    pre: Site
    post: Site
    o: str
    i: Projection
    gate: Projection | None = None
    o_gain: float = 1.0
    kind: str = "mlp"
    norm: str = ""
    post_norm: str = ""
    mix: Mix | None = None
    aside: bool = False
    act: str = ""


@dataclass(frozen=True)
class Branch:
    """Writer of another kind, such as time mixing, a convolution or a recurrence.

    Mixing may be over time or channels.

    Attributes:
        kind: its name in the vocabulary: "time_mix", "conv", "slstm", …
        write: the output of the module that the residual stream receives.
        reads, norm, post_norm, mix, aside: as in :class:`Attention`.
    """

    kind: str
    write: Site
    reads: Site
    norm: str = ""
    post_norm: str = ""
    mix: Mix | None = None
    aside: bool = False


Writer = Attention | Mlp | Branch
W = TypeVar("W", bound=Writer)


@dataclass(frozen=True)
class Stack:
    """Column of equal blocks around one residual stream.

    Attributes:
        name: "encoder", "decoder", or "" where a model has a single stack.
        blocks: path of the list of blocks.
        n_layers, n_heads, d_model, d_head, d_mlp: sizes; ``n_heads`` and ``d_head`` are
            0 in a stack without attention, ``d_mlp`` in one without MLPs.
        writers: the block's writers in the order in which they write.
        ln_final: path of the norm after the last block, "" if there is none.
        final_layout: axes of what that norm returns; "" for those of the last layer's
            stream.
        upstream: modules that compute this stack's input, in order of execution.
        entry: path of the module that is called once per pass through the stack.
        cached: inputs of ``entry`` -> positions that the key-value cache holds before
            the call; None without a cache.
        exceptions: writers of the layers that differ from the others.
        sums: whether the stream is the sum of its writes; False where a norm follows
            each sum. Branches can then be ablated, patched and recorded, but nothing
            can be attributed to them linearly.
        follows: whether its first stream is the last one of the stack before it,
            reshaped or projected.
    """

    name: str
    blocks: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    writers: tuple[Writer, ...]
    ln_final: str = ""
    final_layout: str = ""
    upstream: tuple[str, ...] = ()
    entry: str = ""
    cached: Callable[[tuple[Any, ...], dict[str, Any]], int] | None = None
    exceptions: Mapping[int, tuple[Writer, ...]] = field(default_factory=dict)
    sums: bool = True
    follows: bool = False

    @property
    def prefix(self) -> str:
        """Start of this stack's block names.

        It is ``encoder_blocks``, ``decoder_blocks`` or ``blocks``.
        """
        if self.name:
            return f"{self.name}_blocks"
        return "blocks"

    def block(self, layer: int) -> str:
        """Return the path of one native block.

        Args:
            layer: index of the block in the stack.

        Returns:
            The dotted path of the block below the native model.
        """
        return f"{self.blocks}.{layer}"

    def rows(self, layer: int) -> tuple[Writer, ...]:
        """Return the writers of one layer.

        Args:
            layer: index of the layer.

        Returns:
            The rows of the layer, in the order in which they write.
        """
        return self.exceptions.get(layer, self.writers)

    def writer(self, kind: str | None, layer: int = 0) -> Writer:
        """Return the row of one writer.

        Args:
            kind: such as "self_attn" or "mlp"; the layer's first writer if None.
            layer: index of the layer.

        Returns:
            The row of the attention, MLP or other branch.

        Raises:
            UnknownNameError: the layer has no writer of this kind.
        """
        return self._find_row(kind, layer, self.rows)

    def attention(self, kind: str | None, layer: int = 0) -> Attention:
        """Return the row of one attention.

        Args:
            kind: such as "self_attn" or "cross_attn"; the layer's first attention if
                None.
            layer: index of the layer.

        Returns:
            The row of the attention.

        Raises:
            UnknownNameError: the layer has no attention of this kind.
        """
        return self._find_row(kind, layer, self.attentions)

    def mlp(self, kind: str | None, layer: int = 0) -> Mlp:
        """Return the row of one MLP.

        Args:
            kind: such as "mlp"; the layer's first MLP if None.
            layer: index of the layer.

        Returns:
            The row of the MLP.

        Raises:
            UnknownNameError: the layer has no MLP of this kind.
        """
        return self._find_row(
            kind,
            layer,
            lambda layer: [row for row in self.rows(layer) if isinstance(row, Mlp)],
        )

    def _find_row(
        self, kind: str | None, layer: int, rows_of: Callable[[int], Iterable[W]]
    ) -> W:
        """Return the row of a kind among those of a layer."""
        if layer not in range(self.n_layers):
            raise unknown_name("layer", layer, map(str, range(self.n_layers)))
        # kinds of a layer are unique, which check_table sees to
        rows = {row.kind: row for row in rows_of(layer)}
        for name, row in rows.items():
            if kind in (None, name):
                return row
        raise unknown_name("branch", kind, rows)

    def attentions(self, layer: int = 0) -> Iterator[Attention]:
        """Iterate over the attention rows of a layer, in order.

        Args:
            layer: index of the layer.

        Returns:
            The rows of the layer's attentions.
        """
        return (row for row in self.rows(layer) if isinstance(row, Attention))

    def attention_kinds(self) -> list[str]:
        """List the kinds of attention that any layer has.

        Returns:
            The kinds, in the order in which they first occur.
        """
        return list(
            dict.fromkeys(
                row.kind
                for layer in range(self.n_layers)
                for row in self.attentions(layer)
            )
        )

    def find_layers(self, kind: str | None = None) -> tuple[str, list[int]]:
        """Return a kind of attention, and the layers that have it.

        Args:
            kind: such as "cross_attn"; the stack's last kind if None.

        Returns:
            The kind, and the indices of the layers that have it.

        Raises:
            InputError: the stack has no attention.
            UnknownNameError: no layer has an attention of this kind.
        """
        kinds = self.attention_kinds()
        if not kinds:
            raise InputError(
                f"stack {self.name!r} has no attention, so it has no heads to look at"
            )
        target = kind
        if kind is None:
            # in a decoder this is the attention to the encoder, which reads the context
            target = kinds[-1]
        if target not in kinds:
            raise unknown_name("attention", target, kinds)
        return target, [
            layer
            for layer in range(self.n_layers)
            if any(row.kind == target for row in self.attentions(layer))
        ]


@dataclass(frozen=True, eq=False)
class Wiring:
    """Description of an architecture for the hooks.

    Attributes:
        architecture: name, as listed by ``tsfm-lens models``.
        stacks: in order of execution; the last one's stream is read out as the
            forecast.
        unembed: the head's raw output.
        embed: path of the module that makes tokens, or patches, into the stream's first
            value.
        steps_per_readout: forecast steps that one call of the head yields; a function
            of its output where that varies.
        rollout_tolerance: relative deviation of the library's own cached rollout from
            its full forward.
        sizes_from: a tensor whose layout names "series" and "variate" once per pass,
            for models that keep them apart.
        sample_major: whether sample paths are the outermost part of the batch axis, not
            the innermost.
        unread: modules whose output the readout does not use, so that variants need not
            compute it.
        true_gradients: False if autograd's derivative differs from that of finite
            differences, since the library rescales its backward pass or computes in
            bfloat16 internally.
        precision: the coarsest number format of the library's internal computations,
            whatever that of the weights.
        bypass: whether the head also reads the input itself, past the stream.
    """

    architecture: str
    stacks: tuple[Stack, ...]
    unembed: Site
    embed: str
    steps_per_readout: int | Callable[[Any], int]
    rollout_tolerance: float = 1e-4
    sizes_from: Site | None = None
    sample_major: bool = False
    unread: tuple[str, ...] = ()
    true_gradients: bool = True
    precision: torch.dtype = torch.float32
    bypass: bool = False

    def __repr__(self) -> str:
        return f"Wiring({self.summary})"

    @property
    def summary(self) -> str:
        """Architecture and size of its stacks, in one line."""
        stacks = ", ".join(
            f"{stack.name or 'blocks'}: {stack.n_layers} layers × {stack.n_heads} heads"
            for stack in self.stacks
        )
        return f"{self.architecture}; {stacks}, d_model {self.stacks[-1].d_model}"

    def stack(self, name: str | None) -> Stack:
        """Return a stack by name.

        Args:
            name: name of the stack; the output stack, which the head reads, if None.

        Returns:
            The stack's table.

        Raises:
            UnknownNameError: there is no stack of this name.
        """
        # a table without stacks gets the error below rather than an IndexError
        if name is None and self.stacks:
            return self.stacks[-1]
        for stack in self.stacks:
            if name == stack.name:
                return stack
        raise unknown_name("stack", name, [stack.name for stack in self.stacks])

    @property
    def output_stack(self) -> Stack:
        """Stack whose residual stream becomes the forecast."""
        return self.stacks[-1]

    @property
    def traits(self) -> frozenset[str]:
        """Those of ``TABLE_TRAITS`` that the table gives the model.

        They concern heads, a stream that is a sum, and derivatives.
        """
        kinds = self.output_stack.attention_kinds()
        held = {
            "attention": bool(kinds),
            "cross_attention": "cross_attn" in kinds,
            "additive": self.output_stack.sums,
            "gradients": self.true_gradients,
        }
        return frozenset(name for name, holds in held.items() if holds)
