"""TransformerLens's ways to take a residual stream apart, on activations of any model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from tsfm_lens.errors import HookError, InputError, unknown_name
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.residual import Before
from tsfm_lens.hooks.wiring import Mlp

Labelled = Tensor | tuple[Tensor, list[str]]
"""(component, batch, pos, d_model), with a leading axis "step" after it in rollouts; with its labels if asked for."""


class Decomposed(Mapping[Any, Tensor]):
    """Decomposition of a residual stream with the methods of TransformerLens's ``ActivationCache``.

    Everything has the arguments, the order and the labels of TransformerLens, and ``stack``, for models with an encoder
    and a decoder: the one that is read out as the forecast, unless another is named. Where an attention is not the only
    one of its block, its kind is in the label ("0_cross_attn_out", "L0.cross_attn.H3"). Where blocks rescale their
    stream, what is written early is given as it arrives.

    Arguments that methods share: ``layer`` from 0 to the number of layers, the end of the stack if None or -1;
    ``mlp_input``, up to what the MLP of that layer reads; ``pos_slice``, an index, (start, stop) or list of positions;
    ``apply_ln``, divided by the scale of the norm that reads there; ``return_labels``, also the labels. All raise
    InputError where there is no such layer or it has no MLP, UnknownNameError for what was not recorded, WiringError
    where all writes were recorded and do not sum to the stream, as under a hook that edits the stream itself.
    """

    source: HookRegistry | None

    def accumulated_resid(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: Any = None,
        mlp_input: bool = False,
        return_labels: bool = False,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack the residual stream at every layer up to the input of one; labels are "0_pre", …, "final_post".

        Args:
            layer, mlp_input, pos_slice, return_labels, stack: see the class.
            incl_mid: also the stream after each branch of a block but its last.
            apply_ln: as the norm of that layer shows it, with the scale of that layer's stream; at the end of the stack
                each through the last norm, as the head reads it (the logit lens).
        """
        place = self._before(stack, layer, mlp_input, pos_slice)
        names = place.streams(incl_mid=incl_mid)
        parts = torch.stack([place.cut(name) for name in names.values()])
        if apply_ln:
            # at the end each has a scale of its own, as in TransformerLens
            parts = place.normed(parts) if place.at_the_end else place.scaled(parts)
        return (parts, list(names)) if return_labels else parts

    def decompose_resid(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        mode: Literal["all", "mlp", "attn"] = "all",
        apply_ln: bool = False,
        pos_slice: Any = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack the write of each branch to the stream that a layer reads; the sum of all of them is that stream.

        Args:
            layer, mlp_input, apply_ln, pos_slice, stack: see the class.
            mode: "all", "mlp" or "attn".
            incl_embeds: also the stream's first value.
            return_labels: also "embed", "0_attn_out", "0_mlp_out", ….
        """
        if mode not in ("all", "mlp", "attn"):
            raise unknown_name("mode", mode, ("all", "mlp", "attn"))
        place = self._before(stack, layer, mlp_input, pos_slice, whole=mode == "all")
        labels, writes = ["embed"], [place.embed()]
        for index, row in place.writers():
            if mode == "all" or (mode == "mlp") == isinstance(row, Mlp):
                labels.append(f"{index}_{row.kind}_out")
                writes.append(place.branch(index, row))
        labels, parts = labels[not incl_embeds :], torch.stack(writes)[not incl_embeds :]
        parts = place.scaled(parts) if apply_ln else parts
        return (parts, labels) if return_labels else parts

    def stack_head_results(
        self,
        layer: int | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: Any = None,
        apply_ln: bool = False,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack each head's write to the stream before a layer, from ``hook_result`` or else from ``hook_z`` and W_O.

        Args:
            layer, pos_slice, apply_ln, stack: see the class.
            return_labels: also "L0H0", "L0H1", ….
            incl_remainder: also the rest of the stream: its first value, the MLPs and the biases.
        """
        place = self._before(stack, layer, False, pos_slice)
        labels, heads = place.heads()
        if incl_remainder:
            labels.append("remainder")
            heads = torch.cat([heads, (place.stream() - heads.sum(0))[None]])
        heads = place.scaled(heads) if apply_ln else heads
        return (heads, labels) if return_labels else heads

    def get_full_resid_decomposition(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        expand_neurons: bool = True,
        apply_ln: bool = False,
        pos_slice: Any = None,
        return_labels: bool = False,
        project_output_onto: Tensor | None = None,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack the writes of heads, neurons, embedding and biases to the stream that a layer reads; they sum to it.

        Args:
            layer, mlp_input, apply_ln, pos_slice, stack: see the class.
            expand_neurons: every neuron by itself; else every MLP.
            return_labels: also "L0H0", …, "L0N0", … or "0_mlp_out", …, "embed", "bias".
            project_output_onto: (d_model,) or (d_model, any) to multiply every write with, which spares memory.
        """
        place = self._before(stack, layer, mlp_input, pos_slice, whole=True)

        def project(part: Tensor) -> Tensor:
            part = place.scaled(part) if apply_ln else part
            return part if project_output_onto is None else part @ project_output_onto.to(part)

        labels, heads = place.heads()
        parts = [project(heads)]
        for index, row in place.writers():
            if isinstance(row, Mlp):
                of = place.neurons(index, row) if expand_neurons else place.branch(index, row)[None]
                many = [f"L{index}N{neuron}" for neuron in range(len(of))]
                labels += many if expand_neurons else [f"{index}_{row.kind}_out"]
                parts.append(project(of))
        parts += [project(place.embed()[None]), project(place.bias(of_mlps=expand_neurons)[None])]
        writes, labels = torch.cat(parts), [*labels, "embed", "bias"]
        return (writes, labels) if return_labels else writes

    def apply_ln_to_stack(
        self,
        residual_stack: Tensor,
        layer: int | None = None,
        mlp_input: bool = False,
        pos_slice: Any = None,
        *,
        recompute_ln: bool = False,
        stack: str | None = None,
    ) -> Tensor:
        """Scale parts of a stream as the norm of a layer does, with the scale of the whole stream.

        As in TransformerLens the norm's gain is left out: ``lens.weights.heads(layer, fold_norm=True)`` has it. To read
        parts out as forecasts, give them to ``lens.readout(parts, encoded, like=stream)`` as they are.

        Args:
            residual_stack: (component, …, d_model).
            layer, mlp_input, pos_slice, stack: see the class.
            recompute_ln: at the end of the stack, each part through the last norm itself.

        Raises:
            WiringError: the norm is neither a LayerNorm nor a root-mean-square one.
        """
        place = self._before(stack, layer, mlp_input, pos_slice)
        if residual_stack.shape[-1] != place.stack.d_model:
            raise InputError(
                f"the stack has shape {tuple(residual_stack.shape)}, expected a last axis of {place.stack.d_model}"
            )
        return place.normed(residual_stack) if recompute_ln and place.at_the_end else place.scaled(residual_stack)

    def stack_activation(
        self,
        activation_name: str,
        layer: int | None = -1,
        sublayer_type: str | None = None,
        *,
        stack: str | None = None,
    ) -> Tensor:
        """Stack one activation, named in short, of every layer before one; of one kind of attention where several."""
        place = self._before(stack, layer, False, None)
        name = place.stack.name
        return torch.stack([self[activation_name, index, name, sublayer_type] for index in range(place.layer)])

    def _before(
        self, stack: str | None, layer: int | None, mlp_input: bool, pos_slice: Any, *, whole: bool = False
    ) -> Before:
        if self.source is None:
            raise HookError(
                "these activations do not know their model, whose weights and norms this needs; take those that "
                "lens.run_with_cache or run.record gave"
            )
        place = Before(self, self.source, stack, layer, mlp_input, pos_slice)
        if whole:
            place.refuse_other_stream()
        return place
