"""The wiring of a model as a table: which module carries which activation.

A :class:`Wiring` holds one row per writer to the residual stream. Registry, probes, sweeps and the
conformance suite read these rows and know no model by name, so a new architecture is new rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Site:
    """Where an activation passes by: a module's output, or one of its inputs.

    Attributes:
        module: dotted path; inside a block it is relative to the block.
        side: "in" is the tensor that enters the module, "out" the one that leaves it.
        arg: position (or keyword) of the tensor among the inputs, or in a tuple of outputs.
        layout: einops axes of the native tensor, e.g. "batch pos (head d_head)".
    """

    module: str
    side: Literal["in", "out"] = "out"
    arg: int | str = 0
    layout: str = "batch pos d_model"

    def within(self, block: str) -> Site:
        """The same site with its module path made absolute."""
        path = f"{block}.{self.module}" if self.module else block
        return Site(path, self.side, self.arg, self.layout)


@dataclass(frozen=True)
class Projection:
    """One weight matrix and the order of heads in its rows or columns.

    Attributes:
        module: path of the linear layer, relative to the block.
        layout: einops axes of the side that holds the heads, e.g. "(head d_head)" or "(part d_head head)".
        part: index along the axis "part" of a fused projection.
        parts: length of that axis.
    """

    module: str
    layout: str = "(head d_head)"
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Attention:
    """One attention writer of a block.

    Attributes:
        kind: its name in the vocabulary: "attn", "self_attn" or "cross_attn".
        module: the attention module, which calls scaled dot-product attention exactly once.
        write: the tensor that the residual stream receives.
        reads: the residual stream just before this branch.
        q, k, v, o: projections; the input of ``o`` holds the heads side by side.
        z_layout: einops axes of that input.
        keys_from: the stack whose last activations are the keys and values; "" for its own.
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


@dataclass(frozen=True)
class Mlp:
    """One MLP writer of a block.

    Attributes:
        write: the tensor that the residual stream receives.
        reads: the residual stream just before this branch.
        pre, post: the hidden layer before and after the activation function.
        o: path of the output matrix; zero weights there mean a zero write.
        kind: its name in the vocabulary.
    """

    write: Site
    reads: Site
    pre: Site
    post: Site
    o: str
    kind: str = "mlp"


Writer = Attention | Mlp


@dataclass(frozen=True)
class Stack:
    """A column of equal blocks around one residual stream.

    Attributes:
        name: "encoder", "decoder", or "" where a model has a single stack.
        blocks: path of the list of blocks.
        n_layers, n_heads, d_model, d_head, d_mlp: sizes.
        writers: the block's writers in the order in which they write.
        ln_final: path of the norm after the last block.
        upstream: modules whose outputs this stack's input comes from, in order of execution.
        entry: path of the module that is called once per pass through the stack.
        cache: keyword of ``entry`` that carries the key-value cache, "" if there is none.
    """

    name: str
    blocks: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    writers: tuple[Writer, ...]
    ln_final: str
    upstream: tuple[str, ...] = ()
    entry: str = ""
    cache: str = ""

    @property
    def prefix(self) -> str:
        """Start of this stack's block names: ``encoder_blocks``, ``decoder_blocks`` or ``blocks``."""
        return f"{self.name}_blocks" if self.name else "blocks"

    def block(self, layer: int) -> str:
        """Path of one native block."""
        return f"{self.blocks}.{layer}"

    def writer(self, kind: str) -> Writer:
        """The row of one writer; KeyError if this stack has none of that kind."""
        for writer in self.writers:
            if writer.kind == kind:
                return writer
        raise KeyError(kind)

    def attentions(self) -> Iterator[Attention]:
        """The attention rows, in order."""
        return (w for w in self.writers if isinstance(w, Attention))


@dataclass(frozen=True)
class Wiring:
    """Everything about an architecture that the hooks need to know.

    Attributes:
        architecture: name, as listed by ``tsfm-lens models``.
        stacks: in order of execution; the last one's stream is read out as the forecast.
        unembed: the head's raw output.
        steps_per_readout: forecast steps that one call of the head yields.
        rollout_tolerance: relative deviation of the library's own cached rollout from its full forward.
    """

    architecture: str
    stacks: tuple[Stack, ...]
    unembed: Site
    steps_per_readout: int
    rollout_tolerance: float = 1e-4

    def stack(self, name: str) -> Stack:
        """One stack by name; KeyError if there is none."""
        for stack in self.stacks:
            if stack.name == name:
                return stack
        raise KeyError(name)

    @property
    def output_stack(self) -> Stack:
        """The stack whose residual stream becomes the forecast."""
        return self.stacks[-1]
