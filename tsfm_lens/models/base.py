"""Base of a lens: the opened model, its hook points, and single forwards.

Read :class:`LensBase` first: ``encode``, ``forward``, ``hooks`` and ``readout``.
Forecasts, recordings and ablations, which need several forwards, are in
:class:`tsfm_lens.models.Lens`, since the modules that make them build on this one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformer_lens.hook_points import LensHandle

from tsfm_lens.core.embedded import has_training_record
from tsfm_lens.core.errors import HookError, InputError
from tsfm_lens.core.extensions import public_attributes
from tsfm_lens.core.foreign_words import MEMBERS, answer, answers_arguments
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.data.values import to_floats
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component, select_components
from tsfm_lens.hooks.component import components as all_components
from tsfm_lens.hooks.edit import edited
from tsfm_lens.hooks.interventions import Intervention
from tsfm_lens.hooks.names import get_name, select
from tsfm_lens.hooks.recorder import record_stream
from tsfm_lens.hooks.registry import HookRegistry, attach_point
from tsfm_lens.hooks.scopes import HookScope, resolve_hooks
from tsfm_lens.hooks.tl_names import (
    ARGUMENTS,
    LENS,
    PATCHING,
    PIPELINES,
    is_of_patching,
)
from tsfm_lens.hooks.weights import Weights
from tsfm_lens.hooks.wiring import Attention, Mlp, Wiring
from tsfm_lens.models.adapter import Adapter, check_gradients, covered, versions
from tsfm_lens.models.architecture import Encoded, adapter_traits
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.as_module import NativeModule
from tsfm_lens.models.forecast import check_overflow

HookList = Iterable[tuple[Any, Callable[..., Any]]]
"""Pairs of a point, or several, and a function of an activation and ``hook=``.

A point is given by name, glob, predicate on names, or (short name, layer, …).
"""

# names of the arguments that a forward and a forecast take beside the series
_OF_A_FORWARD = ("future", "horizon", "stop_at_layer", "tokens")
OF_A_FORECAST = ("batch_size", "horizon", "num_samples", "quantiles", "seed")
# hooks set by ``add_hook``: name of the hook point, "fwd" or "bwd", and handle of each
Lasting = list[tuple[str, str, LensHandle]]


class Config(SimpleNamespace):
    """Sizes and kinds of a model; of the output stack, where it has several.

    Attributes:
        model_name: of the loaded model.
        architecture: name of the wiring.
        n_layers, n_heads, d_model, d_head, d_mlp: sizes of the output stack.
        n_key_value_heads: heads of keys and values; as many as heads but for grouped
            queries.
        n_ctx: the most steps of context that the model reads (tokens may cover several
            steps each).
        d_vocab: size of the head's vocabulary; None for models that emit numbers.
        act_fn: activation function of the MLPs, "" where the wiring does not say or
            there is none.
        gated_mlp: whether half of the MLP's hidden layer multiplies the other.
        attn_only: whether there are no MLPs.
        normalization_type: "LN" or "RMS", as TransformerLens has them; None without
            norms.
        dtype, device: of the weights.
        n_params: number of weights.
        stacks: sizes of every stack by name, "" where there is one:
            ``cfg.stacks["encoder"].n_layers``.
    """

    # the constructor of SimpleNamespace fills ``__dict__`` directly and never comes
    # here
    def __setattr__(self, name: str, value: Any) -> None:
        hint = (
            "hook_result and the other hook points are computed whenever they are"
            " asked for"
        )
        raise InputError(
            f"cfg.{name} cannot be set: nothing of the native model is changed, and"
            f" {hint}"
        )


def _of_adapter(name: str, doc: str) -> Any:
    """Make a property that reads an attribute of the adapter."""
    return property(attrgetter(f"adapter.{name}"), doc=doc)


class LensBase(NativeModule):
    """Lens without whole forecasts; see :class:`tsfm_lens.models.Lens`.

    Functions that make forecasts or recordings take a lens by this class, since
    ``Lens`` itself calls them.
    """

    native = _of_adapter("native", "Pipeline of the model's own library.")
    model = _of_adapter("model", "Torch module in the library's own pipeline.")
    wiring: Wiring = _of_adapter("wiring", "Table of the model's modules.")
    device: torch.device = _of_adapter("device", "Device of the native model.")
    emits = _of_adapter(
        "readout",
        'Kind of the head\'s output: "token" logits, a "quantile", or a'
        ' "distribution".',
    )
    levels = _of_adapter(
        "levels",
        "Quantile levels that the head gives, (0.5,) for a mean; none of token models.",
    )
    context_length = _of_adapter(
        "context_length", "Most steps of context that the model reads."
    )
    prediction_length = _of_adapter("prediction_length", "Default horizon.")
    longest_pass = _of_adapter("longest_pass", "Longest horizon of a single forward.")
    packed = _of_adapter(
        "packed", "True if the variates of an item share one token sequence."
    )
    takes_ids = _of_adapter(
        "integers", "True if series are token ids, not measurements."
    )

    def __init__(
        self,
        adapter: Adapter,
        model_id: str = "",
        revision: str | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        super().__init__()
        if not isinstance(getattr(adapter, "wiring", None), Wiring):
            raise InputError(
                "Lens() takes an adapter with a wiring, not a"
                f" {type(adapter).__name__}; tsfm_lens.load(model) opens a model that"
                " is known, and docs/howto/own-model.md wires one of your own"
            )
        if not model_id:
            model_id = type(adapter.model).__name__
        # kept out of torch's module registry: TransformerLens's setup() writes a name
        # onto every submodule
        self.__dict__["adapter"] = adapter
        self.model_id = model_id
        self.revision = revision
        self.files = tuple(files)
        self.__dict__["registry"] = HookRegistry(adapter.model, adapter.wiring)
        # ``setup`` reads the tree of hook points, so that they have to be in it by then
        for name, point in self.registry.hooked.items():
            attach_point(self, name, point)
        self.setup()
        # a native object may come in training mode, in which dropout draws anew in
        # every forward
        self.eval()

    def __reduce__(self) -> tuple[Any, ...]:
        # hook points hold torch handles of their own registry: a copy makes new points,
        # and the functions of lasting hooks are added to those
        return _rebuilt, (
            type(self),
            self.adapter,
            self.model_id,
            self.revision,
            self.files,
            self._lasting_hooks(),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> LensBase:
        hooks = self._lasting_hooks()
        for module in self.adapter.model.modules():
            # some libraries keep functions as attributes in a wrapping that cannot be
            # copied, and need not be
            memo |= {
                id(value): value
                for value in vars(module).values()
                if isinstance(value, staticmethod)
            }
        adapter = copy.deepcopy(self.adapter, memo)
        return _rebuilt(
            type(self), adapter, self.model_id, self.revision, self.files, hooks
        )

    def _lasting_hooks(self) -> Lasting:
        """Return the hooks set by ``add_hook``.

        Each is (name of the hook point, "fwd" or "bwd", handle).
        """
        # hooks of a block are removed when that block is left, which a copy never is
        if self.registry.busy:
            raise HookError(
                "a context is open on this lens, and its hooks would stay on a copy;"
                " leave it first"
            )
        points = self.registry.hooked.items()
        forward = [
            (name, "fwd", handle)
            for name, point in points
            for handle in point.fwd_hooks
        ]
        return forward + [
            (name, "bwd", handle)
            for name, point in points
            for handle in point.bwd_hooks
        ]

    def __repr__(self) -> str:
        return f"Lens({self.model_id!r}, {self.wiring.summary})"

    def __dir__(self) -> list[str]:
        parts = [part for part in type(self).__mro__ if part not in nn.Module.__mro__]
        own = set().union(*map(vars, parts))
        # torch's own methods work and are documented there; a list of them would bury
        # those of the lens
        hidden = vars(nn.Module).keys() - own
        names = public_attributes(super().__dir__())
        return [name for name in names if name not in hidden]

    @property
    def weights(self) -> Weights:
        """Matrices of every head and MLP."""
        return Weights(self.adapter.model, self.wiring)

    @property
    def d_model(self) -> int:
        """Width of the residual stream of the output stack."""
        return self.wiring.output_stack.d_model

    def hook_table(self) -> list[tuple[str, str]]:
        """List every hook point with the names of its axes.

        Returns:
            Name of the hook point and its axes, as one text, of each.

        Example:
            >>> dict(lens.hook_table())["decoder_blocks.0.hook_resid_pre"]
            'batch pos d_model'
        """
        return [
            (name, " ".join(point.axes)) for name, point in self.registry.points.items()
        ]

    def components(self, *patterns: str | Component) -> list[Component]:
        """Return components by name or glob, all if none is given.

        Args:
            patterns: names, globs, labels of heads, or hook points of writes.

        Returns:
            The components, in model order and each once.

        Raises:
            UnknownNameError: a pattern matches nothing.

        Example:
            >>> len(lens.components("decoder.*.cross_attn.*"))
            12
        """
        if patterns:
            return select_components(self.wiring, *patterns)
        return list(all_components(self.wiring))

    def provenance(self) -> dict[str, object]:
        """Return the origin of a result.

        Returns:
            Model, revision, architecture and versions of packages, by name.
        """
        return {
            "model": self.model_id,
            "revision": self.revision or "",
            "architecture": self.wiring.architecture,
            "versions": versions(self.adapter.package),
        }

    def describe(
        self, kind: str, title: str, source: str, **parameters: object
    ) -> dict[str, object]:
        """Return the attributes of a result.

        Args:
            kind: of the result, such as "attribution".
            title: of the result.
            source: paper or definition that the result follows.
            parameters: what the probe was called with.

        Returns:
            Kind, title, source, provenance and parameters, by name.
        """
        names = {"kind": kind, "title": title, "source": source}
        return {**names, **self.provenance(), **parameters}

    def running(
        self, rows: int, place: tuple[int, int | None] = (0, None)
    ) -> Block[None]:
        """Tell hooks which rows run and at which step the forecast is.

        Calls of the native object tell hooks nothing.

        Args:
            rows: number of rows of the batch that runs.
            place: of a part of a batch, the index of its first row in the whole batch,
                and the number of rows of the whole batch; None for a whole batch.

        Returns:
            A block in which hooks know rows and step.
        """
        return self.registry.state.running(rows, place)

    def readout(
        self,
        resid: Tensor,
        encoded: Encoded,
        *,
        like: Tensor | None = None,
        unread: int = 0,
    ) -> Tensor:
        """Apply the native head to any residual stream: the logit lens.

        Args:
            resid: (…, series, pos, d_model) of the output stack.
            encoded: the batch it belongs to.
            like: freeze the final norm's scale to that of this stream (same shape up to
                broadcasting), so that the logits of parts sum to those of their sum; of
                token models.
            unread: first positions that ``resid`` leaves out, since the head does not
                read them.

        Returns:
            Logits (…, series, step, vocabulary), or quantiles in data units (…, series,
            quantile, step).

        Raises:
            InputError: a stream of another width; ``like`` of a model whose head is no
                linear map.

        Example:
            >>> last = "decoder_blocks.2.hook_resid_post"
            >>> _, cache = lens.run_with_cache(run.encoded, names_filter=last)
            >>> lens.readout(cache[last], run.encoded).shape[:2]
            torch.Size([1, 12])
        """
        if like is not None and self.emits != "token":
            raise InputError(
                f"the head of {self.wiring.architecture} is no linear map, so what it"
                " makes of single parts does not sum to the forecast;"
                " probes.attribution(run) splits the forecast among them. Leave like=…"
                " out to read out a whole stream"
            )
        return self.frozen_readout(resid, encoded, like, unread)

    def frozen_readout(
        self, resid: Tensor, encoded: Encoded, like: Tensor | None, unread: int = 0
    ) -> Tensor:
        """Apply the native head under the frozen norm scale of another stream.

        Derivatives of a forecast are taken through this.

        Args:
            resid: stream of the output stack, (…, series, pos, d_model).
            encoded: the batch that it belongs to.
            like: stream by whose scale the last norm divides; that of ``resid`` if
                None.
            unread: first positions that ``resid`` leaves out, since the head does not
                read them.

        Returns:
            Logits, or quantiles in data units (…, series, quantile, step).

        Raises:
            InputError: the stream has another width than the model.
        """
        if resid.shape[-1] != self.d_model:
            raise InputError(
                f"the stream has shape {tuple(resid.shape)}, expected (…, series, pos,"
                f" {self.d_model})"
            )
        normed = self.adapter.final_norm(resid, like)
        # heads find their positions by index, so that those left out are put back as
        # zeros
        if unread:
            normed = nn.functional.pad(normed, (0, 0, unread, 0))
        return self.adapter.head(normed, encoded)

    @property
    def traits(self) -> frozenset[str]:
        """Traits of the model that measurements can require.

        See also :class:`tsfm_lens.models.Architecture`.
        """
        traits = self.wiring.traits | adapter_traits(self.adapter)
        if has_training_record(self.model_id):
            return traits | {"training_record"}
        return traits

    @property
    def rereads(self) -> bool:
        """True if a rollout encodes its longer context anew beyond one pass."""
        return self.adapter.rollout == "refeed" or (
            self.adapter.rollout == "tokens" and self.adapter.restarts
        )

    @property
    def example_ids(self) -> np.ndarray:
        """Token ids of an example series, (id,); of models that take ids."""
        # an example holds that many shorter series and then the longest one, here alone
        ids: np.ndarray = self.adapter.example(0, 4096).values[0]  # type: ignore[attr-defined]
        return ids

    @property
    def tokens(self) -> Any:
        """Token model that takes ids; None if the model is not one."""
        if hasattr(self.adapter, "encode_tokens"):
            return self.adapter
        return None

    @property
    def first_value_token(self) -> int:
        """Id of the lowest value bin of a token model; all lower ids are special."""
        return int(self.adapter.first_value_token)  # type: ignore[attr-defined]

    def bin_values(self, encoded: Encoded) -> Tensor:
        """Return the value of each value token of a token model.

        Args:
            encoded: the batch, whose scales turn bins into data units.

        Returns:
            Values in data units, (series, bin), from the lowest on.

        Example:
            >>> bool((lens.bin_values(run.encoded).diff() > 0).all())
            True
        """
        return self.adapter.values(encoded)[:, self.first_value_token :]

    def final_norm(self, resid: Tensor) -> Tensor:
        """Apply the norm before the head to a stream.

        Args:
            resid: stream of the output stack, (…, d_model).

        Returns:
            The normalised stream, of the same shape.
        """
        return self.adapter.final_norm(resid)

    @answers_arguments("lens.encode")
    def encode(
        self,
        series: Any,
        *,
        future: Any = None,
        tokens: Tensor | None = None,
        horizon: int | None = None,
    ) -> Encoded:
        """Encode series as the native model takes them.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes.
            future: (series, step) values after the context, to teacher-force a token
                model's decoder.
            tokens: (series, step) token ids for the same purpose.
            horizon: forecast steps of the one forward; the model's own if None. Models
                whose pass always yields the same number of steps yield them all.

        Returns:
            The batch as the model takes it, with the steps that its tokens cover.
            :meth:`forward` and :meth:`Lens.run_with_cache` take it in place of series.

        Raises:
            InputError: the future has another shape, one pass cannot yield the horizon,
                or a scale overflows.

        Example:
            >>> lens.encode(tsfm_lens.bundled("nile")).token_table().columns[0]
            'token'
        """
        if isinstance(series, SeriesBatch):
            batch = series
        else:
            batch = as_series(series)
        horizon = covered(self.adapter, batch, horizon)
        if future is None:
            values = None
        else:
            values = torch.as_tensor(to_floats(future, "the future"))
        if tokens is None:
            ids = None
        else:
            # ids pass as numbers here; adapters refuse those that are fractions or out
            # of range
            ids = torch.as_tensor(to_floats(tokens, "the array of tokens"))
        if values is not None and ids is not None:
            raise InputError("give either future values or decoder tokens, not both")
        for array in (values, ids):
            if array is not None and self.adapter.readout != "token":
                raise InputError(
                    f"{self.wiring.architecture} takes no future values in a single"
                    " forward; leave `future` out"
                )
            if array is not None and (array.ndim != 2 or len(array) != len(batch)):
                raise InputError(
                    f"future values have shape {tuple(array.shape)}, expected (series,"
                    f" step) with {len(batch)} series"
                )
        if horizon is not None and not (
            is_count(horizon) and horizon <= self.adapter.longest_pass
        ):
            raise InputError(
                f"horizon {horizon!r} of a single forward; one pass of"
                f" {self.wiring.architecture} yields 1 to {self.adapter.longest_pass}"
                " steps, lens.forecast forecasts further"
            )
        if self.adapter.readout == "token":
            options = {"future": values, "tokens": ids}
        else:
            options = {}
        encoded = self.adapter.encode(
            batch, horizon=None if horizon is None else int(horizon), **options
        )
        check_overflow(encoded)
        return encoded

    def forward(
        self,
        series: Any,
        *,
        future: Any = None,
        tokens: Tensor | None = None,
        horizon: int | None = None,
        stop_at_layer: int | str | Component | None = None,
    ) -> Tensor:
        """Run one differentiable forward.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes, or an
                :class:`Encoded` batch, which is taken as it is.
            future: (series, step) values after the context, to teacher-force a token
                model's decoder.
            tokens: (series, step) token ids for the same purpose.
            horizon: forecast steps of the forward; the model's own if None.
            stop_at_layer: do not run this layer and later ones: an index in the output
                stack, from its end if below 0, a layer by name ("encoder.1"), or the
                hook point of a stream.

        Returns:
            Token models: logits (series, step, vocabulary). Patch models: quantiles in
            data units (series, quantile, step); models with a distribution head: its
            mean, with a single quantile entry. With ``stop_at_layer`` the stream that
            enters it, or is at the hook point, (row, pos, d_model).

        Raises:
            UnknownNameError: no such layer.

        Example:
            >>> lens.forward(run.encoded).shape[:2]
            torch.Size([1, 12])
        """
        if not isinstance(series, Encoded):
            series = self.encode(series, future=future, tokens=tokens, horizon=horizon)
        with self.running(len(series.rows), series.place), self.registry.attach():
            if stop_at_layer is not None:
                return record_stream(
                    self.registry,
                    stop_at_layer,
                    lambda: self.adapter.run(series.inputs),
                )
            return self.adapter.run(series.inputs)

    def edit(self, *interventions: Intervention) -> Block[Self]:
        """Apply interventions, in order, to everything that runs inside the block.

        Args:
            interventions: changes, such as ``Zero("decoder.0.mlp")``.

        Returns:
            A block that yields the lens.

        Raises:
            UnknownNameError: a target matches no component or hook point.

        Example:
            >>> with lens.edit(tsfm_lens.Zero("decoder.*.mlp")):
            ...     changed = lens.forecast(run.batch, 12, num_samples=4)
            >>> bool((changed.median != run.forecast.median).any())
            True
        """
        return edited(self.registry, interventions, self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            hint = LENS.get(name) or PIPELINES.get(name) or _in_stacks(self, name)
            hint = hint or MEMBERS.get(name, "")
            if not hint:
                raise
        # outside of the except clause, so that torch's own error is not shown before
        # this one
        raise AttributeError(f"a lens has no {name!r}: {hint}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one forward.

        Returns:
            What :meth:`forward` returns.

        Raises:
            InputError: an argument of TransformerLens's has no counterpart here.
        """
        check_unknown(
            {name: value for name, value in kwargs.items() if name != "series"},
            "forward",
        )
        return super().__call__(*args, **kwargs)

    @property
    def cfg(self) -> Config:
        """Sizes and kinds of the model, as TransformerLens names them.

        Example:
            >>> lens.cfg.n_layers, lens.cfg.n_heads, lens.cfg.d_model, lens.cfg.act_fn
            (3, 4, 96, 'relu')
        """
        wiring = self.wiring
        model = self.adapter.model
        stack = wiring.output_stack
        # layers may differ in their rows, so that the first one need not have an MLP
        rows = [row for layer in range(stack.n_layers) for row in stack.rows(layer)]
        mlp = next((row for row in rows if isinstance(row, Mlp)), None)
        attention = next((row for row in rows if isinstance(row, Attention)), None)
        weights = list(model.parameters())
        norm = next(
            (f"{stack.block(0)}.{row.norm}" for row in stack.rows(0) if row.norm),
            stack.ln_final,
        )
        norm_kind = None
        if norm:
            # each library has its own class of root-mean-square norm, but LayerNorm is
            # torch's
            is_layer_norm = isinstance(model.get_submodule(norm), nn.LayerNorm)
            norm_kind = "LN" if is_layer_norm else "RMS"
        n_key_value_heads = stack.n_heads
        if attention is not None:
            n_key_value_heads = attention.count_heads("k", stack.n_heads)
        return Config(
            model_name=self.model_id,
            architecture=wiring.architecture,
            **{
                name: getattr(stack, name)
                for name in ("n_layers", "n_heads", "d_model", "d_head", "d_mlp")
            },
            n_key_value_heads=n_key_value_heads,
            n_ctx=self.context_length,
            d_vocab=self.weights.W_U.shape[1] if self.emits == "token" else None,
            act_fn="" if mlp is None else mlp.act,
            gated_mlp=mlp is not None and mlp.gate is not None,
            attn_only=mlp is None,
            normalization_type=norm_kind,
            dtype=weights[0].dtype,
            device=self.device,
            n_params=sum(weight.numel() for weight in weights),
            stacks={s.name: s for s in wiring.stacks},
        )

    def hooks(
        self,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Block[Self]:
        """Set hooks as TransformerLens's ``hooks`` does, with globs as names.

        All names are resolved before the first hook is set.

        Args:
            fwd_hooks: pairs of a name, a glob or a predicate of hook points, and a
                function of the activation and the hook point, which may return a new
                activation.
            bwd_hooks: such pairs, whose functions take the gradient.
            reset_hooks_end: True; other values are refused, since hooks leave with the
                block.
            clear_contexts: whether the contexts of hook points are cleared at the end.

        Returns:
            A block that yields the lens.

        Raises:
            UnknownNameError: a name matches no hook point.
            WiringError: compiled or replaced modules would pass a hook by.
            InputError: TransformerLens's loops over patches of a model of series.
            HookError: on leaving, the model ran and a hook point was never passed, or
                no gradient came to any backward hook.
        """
        points = self.registry.points
        forward = resolve_hooks(points, fwd_hooks, "fwd")
        backward = resolve_hooks(points, bwd_hooks, "bwd")
        if not self.takes_ids and any(
            is_of_patching(hook) for _name, hook, _direction in forward
        ):
            # steps of a series are no positions: the loop would end within it or run
            # past them
            raise InputError(PATCHING)
        if backward:
            check_gradients(self.wiring)
        hooks = [*forward, *backward]
        if not reset_hooks_end:
            # TransformerLens gives such hooks this level, by which
            # ``reset_hooks(level=…)`` finds them
            level = self.context_level + 1
            for name, hook, direction in hooks:
                self.registry.hooked[name].add_hook(hook, dir=direction, level=level)
            hooks = []
        return Block(
            HookScope(
                self.registry,
                self,
                hooks,
                after=self.clear_contexts if clear_contexts else None,
            )
        )

    def clear_contexts(self) -> None:
        """Clear contexts as TransformerLens's ``clear_contexts`` does.

        It may be interrupted and called again.
        """
        for point in self.registry.hooked.values():
            point.ctx = {}

    def add_hook(self, name: Any, hook: Any, *args: Any, **kwargs: Any) -> None:
        """Add a hook as TransformerLens's ``add_hook`` does, with globs as names.

        It stays until ``reset_hooks()``.

        Args:
            name: name, glob or predicate of hook points.
            hook: function of the activation and the hook point, which may return a new
                activation.
            args: further positional arguments of TransformerLens's ``add_hook``.
            kwargs: its keyword arguments, such as ``dir="bwd"``.
        """
        # TransformerLens takes the direction by position, too
        if "bwd" in (*args, kwargs.get("dir")):
            check_gradients(self.wiring)
        name = get_name(name)
        # TransformerLens itself asks a predicate about every name
        if callable(name):
            super().add_hook(name, hook, *args, **kwargs)
            return
        for point in select(self.registry.points, name):
            super().add_hook(point, hook, *args, **kwargs)


def _rebuilt(
    kind: type[LensBase],
    adapter: Adapter,
    model_id: str,
    revision: str | None,
    files: tuple[Path, ...],
    hooks: Lasting,
) -> LensBase:
    """Build a lens around a copied or unpickled model, and set its hooks again."""
    lens = kind(adapter, model_id, revision, files)
    for name, direction, handle in hooks:
        lens.registry.hooked[name].add_hook(
            handle.user_hook, direction, handle.is_permanent, handle.context_level
        )
    return lens


def _in_stacks(lens: LensBase, name: str) -> str:
    """Name the stacks that hold a name of TransformerLens's.

    Of a model with an encoder and a decoder, "blocks" is in "decoder_blocks", for
    example.

    Returns:
        The end of a message, "" if no stack holds the name.
    """
    # attributes may be asked for before torch's constructor has run
    if "_modules" not in lens.__dict__:
        return ""
    paths = [child for child in lens._modules if child.endswith(f"_{name}")]
    paths += [
        f"{child}.{name}"
        for child, module in lens._modules.items()
        if module and name in module._modules
    ]
    if paths:
        return f"this model has {' and '.join(sorted(paths))}"
    return ""


def check_unknown(
    arguments: Iterable[str], label: str, allowed: Sequence[str] = ()
) -> None:
    """Refuse arguments that a forward, a forecast or something else does not take."""
    allowed = allowed or {"forecast": OF_A_FORECAST, "forward": _OF_A_FORWARD}[label]
    for name in arguments:
        if name in allowed:
            continue
        hint = ARGUMENTS.get(name) or answer(name, allowed)
        raise InputError(f"a {label} takes no {name!r}; {hint}")
