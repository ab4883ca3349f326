"""Methods of TransformerLens's models: hooks, caching, configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from transformer_lens import HookedRootModule

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.names import select
from tsfm_lens.hooks.recorder import NamesFilter, Positions, Reducer
from tsfm_lens.hooks.registry import HookRegistry, HookScope, resolve_hooks
from tsfm_lens.hooks.tl_names import ARGUMENTS, LENS
from tsfm_lens.hooks.wiring import Mlp, Stack
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.recording import recorded_run, refuse_gradients, refuse_run

if TYPE_CHECKING:
    from tsfm_lens.models.forecast import Forecast

HookList = Iterable[tuple[Any, Callable[..., Any]]]
"""(name, glob, predicate on names, or (short name, layer, …); function of an activation and ``hook=``)."""

_OF_A_FORWARD = ("future", "horizon", "stop_at_layer", "tokens")
_OF_A_FORECAST = ("batch_size", "horizon", "memory", "num_samples", "quantiles", "seed")


@dataclass(frozen=True)
class _Fields:
    """Fields of a :class:`Config`."""

    model_name: str
    architecture: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    n_key_value_heads: int
    n_ctx: int
    d_vocab: int | None
    act_fn: str
    gated_mlp: bool
    attn_only: bool
    normalization_type: str | None
    dtype: torch.dtype
    device: torch.device
    n_params: int
    stacks: Mapping[str, Stack] = field(repr=False)


class Config(_Fields):
    """Sizes and kinds of a model; of the stack that is read out, where it has several.

    Attributes:
        model_name: of the loaded model.
        architecture: name of the wiring.
        n_layers, n_heads, d_model, d_head, d_mlp: sizes of the stack that is read out.
        n_key_value_heads: heads of keys and values; as many as heads but for grouped queries.
        n_ctx: the most steps of context that the model reads (tokens may cover several steps each).
        d_vocab: size of the head's vocabulary; None for models that emit numbers.
        act_fn: activation function of the MLPs, "" where the wiring does not say or there is none.
        gated_mlp: whether half of the MLP's hidden layer multiplies the other.
        attn_only: whether there are no MLPs.
        normalization_type: "LN" or "RMS", as TransformerLens has them; None without norms.
        dtype, device: of the weights.
        n_params: number of weights.
        stacks: sizes of every stack by name, "" where there is one: ``cfg.stacks["encoder"].n_layers``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        hint = "hook_result and the other hook points are computed whenever they are asked for"
        raise InputError(f"cfg.{name} cannot be set: nothing of the native model is changed, and {hint}")


def config_of(lens: LensBase) -> Config:
    """Return the configuration of a model behind a lens."""
    stack, model = lens.wiring.output_stack, lens.adapter.model
    rows = [row for layer in range(stack.n_layers) for row in stack.rows(layer)]
    mlp = next((row for row in rows if isinstance(row, Mlp)), None)
    attention = next((row for row in rows if not isinstance(row, Mlp)), None)
    n_shared = attention.heads_of("k", stack.n_heads) if attention is not None else stack.n_heads
    weights = list(lens.parameters())
    return Config(
        lens.model_id,
        lens.wiring.architecture,
        stack.n_layers,
        stack.n_heads,
        stack.d_model,
        stack.d_head,
        stack.d_mlp,
        n_shared,
        lens.context_length,
        lens.weights.W_U.shape[1] if lens.emits == "token" else None,
        "" if mlp is None else mlp.act,
        mlp is not None and mlp.gate is not None,
        mlp is None,
        _normalization(model, stack),
        weights[0].dtype,
        lens.device,
        sum(weight.numel() for weight in weights),
        {column.name: column for column in lens.wiring.stacks},
    )


def _normalization(model: nn.Module, stack: Stack) -> str | None:
    path = next((f"{stack.block(0)}.{row.norm}" for row in stack.rows(0) if row.norm), stack.ln_final)
    if not path:
        return None
    return "LN" if isinstance(model.get_submodule(path), nn.LayerNorm) else "RMS"


class Hooked(HookedRootModule):
    """Hooks of a lens, with the methods of TransformerLens's models."""

    registry: HookRegistry

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            instead = LENS.get(name) or _in_stacks(self, name)
            if not instead:
                raise
        raise AttributeError(f"a lens has no {name!r}: {instead}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one forward; InputError for an argument of TransformerLens's that has no counterpart."""
        _refuse_unknown({name: value for name, value in kwargs.items() if name != "series"}, rollout=False)
        return super().__call__(*args, **kwargs)

    @property
    def cfg(self: Any) -> Config:
        """Sizes and kinds of the model, as TransformerLens names them.

        Example:
            >>> lens.cfg.n_layers, lens.cfg.n_heads, lens.cfg.d_model, lens.cfg.act_fn
            (3, 4, 96, 'relu')
        """
        return config_of(self)

    def hooks(
        self,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Block[Self]:
        """Set hooks as TransformerLens's ``hooks`` does, with globs as names; all names are resolved first.

        Raises:
            UnknownNameError: a name matches no hook point.
            WiringError: compiled or replaced modules would pass a hook by.
            HookError: on leaving, the model ran and a hook point was never passed, or no gradient came to any backward
                hook.
        """
        points = self.registry.points
        forward, backward = resolve_hooks(points, fwd_hooks, "fwd"), resolve_hooks(points, bwd_hooks, "bwd")
        if backward:
            refuse_gradients(self.wiring)
        hooks = [*forward, *backward]
        if not reset_hooks_end:
            for name, hook, direction in hooks:
                self.registry.hooked[name].add_hook(hook, dir=direction)
            hooks = []
        return Block(HookScope(self.registry, self, hooks, after=self.clear_contexts if clear_contexts else None))

    def clear_contexts(self) -> None:
        """Clear contexts as TransformerLens's ``clear_contexts``; may be broken off and called again."""
        for point in self.registry.hooked.values():
            point.ctx = {}

    def add_hook(self, name: Any, hook: Any, *args: Any, **kwargs: Any) -> None:
        """Add a hook as TransformerLens's ``add_hook``, with globs as names; it stays until ``reset_hooks()``."""
        if "bwd" in (*args, kwargs.get("dir")):
            refuse_gradients(self.wiring)
        if callable(name):
            super().add_hook(name, hook, *args, **kwargs)
            return
        for point in select(self.registry.points, name):
            super().add_hook(point, hook, *args, **kwargs)

    def run_with_hooks(
        self,
        series: Any,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
        *,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        rollout: bool = False,
        **run: Any,
    ) -> Tensor | Forecast:
        """Run :meth:`forward` once with hooks, or :meth:`forecast` with ``rollout=True``; ``run`` are its arguments."""
        _refuse_unknown(run, rollout)
        with self.hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            return self.forecast(series, **run) if rollout else self.forward(series, **run)

    def run_with_cache(
        self,
        series: Any,
        *,
        names_filter: NamesFilter = None,
        rollout: bool = False,
        device: torch.device | str | None = None,
        reduce: Reducer | Mapping[str, Reducer] | None = None,
        incl_bwd: bool = False,
        loss: Callable[[Tensor], Tensor] | None = None,
        memory: int | str | None = None,
        remove_batch_dim: bool = False,
        pos_slice: Any = None,
        **run: Any,
    ) -> tuple[Any, Activations]:
        """Run once and keep activations; in parts of the batch where the memory asks for it.

        Args:
            series: see :meth:`encode`.
            names_filter: names or globs of hook points, or a predicate. None keeps all but the
                large ``hook_result``.
            rollout: run a whole forecast; activations then have a leading axis ``step``.
            device: where to keep activations.
            reduce: function on each activation before it is stored, or one by name or glob.
            incl_bwd: also run backward and keep gradients under ``name + "_grad"``.
            loss: output -> scalar to differentiate; needed with ``incl_bwd``.
            memory: see :meth:`forecast`.
            remove_batch_dim: of a single row, leave the axis "batch" out.
            pos_slice: keep these positions alone, queries of patterns: an index, (start, stop) or a list.
            run: further arguments of :meth:`forward`, ``stop_at_layer`` among them, or of :meth:`forecast`.

        Returns:
            The output (a :class:`Forecast` for rollouts) and the activations.

        Raises:
            UnknownNameError: a name matches no hook point.
            InputError: gradients asked without a scalar loss, of a rollout, under inference mode, or of a model whose
                backward pass is not the derivative; a rollout of a model that runs twice per forecast; too little
                memory.
        """
        _refuse_unknown(run, rollout)
        refuse_run(self, rollout, incl_bwd, loss)
        if pos_slice is not None and reduce is not None:
            raise InputError("pos_slice and reduce exclude each other; let the reducer take the positions")
        reducer = reduce if pos_slice is None else Positions(self.registry.points, pos_slice)
        how = (device, reducer, loss if incl_bwd else None, memory)
        output, acts = recorded_run(self, series, names_filter, rollout, *how, run)
        return output, acts.remove_batch_dim() if remove_batch_dim else acts


def _in_stacks(lens: Hooked, name: str) -> str:
    """Point to the stacks of a model that hold a name of TransformerLens's: "decoder_blocks" for "blocks"."""
    if "_modules" not in lens.__dict__:
        return ""
    paths = [other for other in lens._modules if other.endswith(f"_{name}")]
    paths += [f"{other}.{name}" for other, module in lens._modules.items() if module and name in module._modules]
    return f"this model has {' and '.join(sorted(paths))}" if paths else ""


def _refuse_unknown(arguments: Mapping[str, Any], rollout: bool) -> None:
    allowed = _OF_A_FORECAST if rollout else _OF_A_FORWARD
    for name in arguments:
        if name in allowed:
            continue
        near = get_close_matches(name, allowed, n=1, cutoff=0.4)
        nearest = f"did you mean {near[0]}?" if near else f"it takes {', '.join(allowed)}"
        what = "forecast" if rollout else "forward"
        raise InputError(f"a {what} takes no {name!r}; {ARGUMENTS.get(name, nearest)}")
