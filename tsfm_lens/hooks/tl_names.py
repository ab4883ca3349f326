"""Names of TransformerLens: hook points, members, and what replaces those that lack.

Read :func:`full_name`, which finds the hook point that a short name, a tuple or another
spelling means. The tables say, for each member that has no counterpart here, what to
use instead; errors quote them. Our own names are in :mod:`tsfm_lens.hooks.names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from transformer_lens.utilities import get_act_name

from tsfm_lens.core.errors import UnknownNameError
from tsfm_lens.core.foreign_words import refuse_member

Key = str | tuple[str | int | None, ...]
"""Name of a hook point, or (short name, layer, …).

The tuple has the stack and the kind of attention where several have such a point.
"""

_NORMS = (
    "Of norms only ln_final.hook_normalized has a hook point;"
    " acts.apply_ln_to_stack(stack, layer) applies any."
)
_READS = (
    "A branch reads the stream, hook_resid_pre or hook_resid_mid, through its norm;"
    " edit it there."
)
_HEADS = "lens.weights.heads(layer)"
_MLP = "lens.weights.mlp(layer)"
_FULL = "get_full_resid_decomposition(return_labels=True)"

# hook points that have no counterpart -> the replacement
_POINTS = {
    "mid": (
        "The MLPs here have no norm inside: hook_post is what enters the output matrix."
    ),
    "pos_embed": (
        "What a model adds for positions is part of hook_embed, the stream's first"
        " value."
    ),
    "pre_linear": (
        f"The second half of a gated layer has no hook point; {_MLP}.W_gate makes it."
    ),
    "tokens": "Tokens are in lens.encode(series).inputs.",
    **dict.fromkeys(("normalized", "scale"), _NORMS),
    **dict.fromkeys(("attn_in", "k_input", "mlp_in", "q_input", "v_input"), _READS),
}
CACHE = {
    "apply_slice_to_batch_dim": (
        "take rows of one activation, or run some of the series: run.select(ids)"
    ),
    **dict.fromkeys(
        ("compute_ssm_effective_attention", "compute_ssm_state", "ssm_layers"),
        "no model here has state-space layers; the hook points of each are in"
        " lens.hook_table()",
    ),
    "cache_dict": "the activations are a mapping by name themselves",
    "compute_head_results": "stack_head_results() computes what was not recorded",
    "has_embed": "hook_embed is there if it was recorded: 'hook_embed' in acts",
    "logit_attrs": "probes.attribution(run) splits the forecast among all components",
    "logit_lens": (
        "probes.logit_lens(run) reads every layer out; one stream: lens.readout(stream,"
        " encoded)"
    ),
    "model": "the model is the lens that was run",
    "toggle_autodiff": (
        "recorded activations are detached; torch.inference_mode() switches"
        " gradients off"
    ),
    **dict.fromkeys(
        ("get_neuron_results", "stack_neuron_results"), f"{_FULL} has the neurons"
    ),
}
"""Members of TransformerLens's cache that activations lack -> the replacement."""
LENS = {
    **{name: f"{_HEADS}.W_{name}" for name in ("OV", "QK")},
    **{
        f"{name}_for_attn_layers": f"{_HEADS}.W_{name} of each layer"
        for name in ("OV", "QK")
    },
    **dict.fromkeys(
        ("block_hooks", "hook_aliases"),
        "lens.hook_table() lists the hook points, with the names of their axes",
    ),
    **dict.fromkeys(
        ("block_submodules", "blocks_with", "composition_layer_indices", "layer_types"),
        "lens.components() lists what each layer has, and lens.wiring.stacks the"
        " stacks",
    ),
    **dict.fromkeys(
        ("boot_native", "boot_tl_legacy", "boot_transformers"),
        "tsfm_lens.load(source) opens a checkpoint, a hub id, or a model that is built",
    ),
    **dict.fromkeys(
        ("check_model_support", "list_supported_models"),
        "tsfm_lens.models.architectures() and `tsfm-lens models`",
    ),
    **dict.fromkeys(
        (
            "diffusion_generate",
            "generate_stream",
            "hf_generate",
            "predict_next_sentence",
        ),
        "lens.forecast(series, horizon) is the library's own forecast",
    ),
    **dict.fromkeys(
        ("get_params", "stack_params_for"),
        f"{_HEADS} and {_MLP} have the matrices of a layer; lens.named_parameters()",
    ),
    **dict.fromkeys(
        ("tl_named_parameters", "tl_parameters"),
        f"lens.named_parameters() has the native names; {_HEADS} the matrices",
    ),
    **dict.fromkeys(
        ("input_to_embed", "prepare_multimodal_inputs"),
        "lens.encode(series).inputs is what enters the model",
    ),
    **dict.fromkeys(
        ("to_sentence_pair_tokens", "to_single_str_token"),
        "series are numbers; lens.encode(series).token_table() says what each token"
        " covers",
    ),
    **{
        name: f"{_HEADS}.{name}"
        for letter in "QKVO"
        for name in (f"W_{letter}", f"b_{letter}")
    },
    **{
        name: f"{_MLP}.{name}"
        for name in ("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out")
    },
    **{name: f"lens.weights.{name}" for name in ("W_E", "W_U")},
    **dict.fromkeys(
        ("W_E_pos", "W_pos", "pos_embed"),
        "what a model adds for positions is part of hook_embed",
    ),
    **dict.fromkeys(
        ("to_str_tokens", "to_string"),
        "lens.encode(series).token_table() says what each token covers",
    ),
    **dict.fromkeys(
        (
            "center_writing_weights",
            "enable_compatibility_mode",
            "process_weights",
            "process_weights_",
        ),
        f"the native model stays as it is; {_HEADS[:-1]}, fold_norm=True) has a norm's"
        " gain folded in",
    ),
    "accumulated_bias": f"cache.{_FULL} has the biases, labelled 'bias'",
    "all_composition_scores": (
        "transformer_lens.utilities.composition_scores(left, right) takes two circuits"
        f" of {_HEADS}; what one head reads of another, by cause: probes.path_patching"
    ),
    "all_head_labels": "[str(head) for head in lens.components('**.*attn.*')]",
    "attn_head_labels": "[str(head) for head in lens.components('**.*attn.*')]",
    "b_U": (
        "lens.weights.W_U is the matrix of a head that is one; parameters have their"
        " native names in lens.named_parameters()"
    ),
    "clear_hook_registry": (
        "lens.reset_hooks(including_permanent=True) takes all hooks off"
    ),
    "close": "a lens holds nothing open; lens.reset_hooks() takes hooks off",
    "encoder_output": (
        "lens.embed(series), or the activation encoder.ln_final.hook_normalized"
    ),
    "fold_layer_norm": (
        "the native model stays as it is; lens.weights.heads(layer, fold_norm=True) has"
        " it folded"
    ),
    "get_hook_point": "lens.hook_dict[name] is the hook point of a name",
    "get_token_position": (
        "lens.encode(series).token_table() says which steps each token covers"
    ),
    "init_weights": (
        "models.twins.untrained_twin(lens, seed) is the model with random weights"
    ),
    "mps": "lens.to('mps')",
    "n_params_total": "lens.cfg.n_params",
    "original_model": (
        "lens.model is the native module, lens.native the library's pipeline"
    ),
    "generate": "lens.forecast(series, horizon)",
    "loss_fn": (
        "sweeps and lens.run(series, horizon, holdout=True) score forecasts against the"
        " truth"
    ),
    "set_use_attn_in": (
        "edit hook_resid_pre, which the attention reads through its norm"
    ),
    "set_use_attn_result": "hook_result is computed whenever it is asked for",
    "set_use_hook_mlp_in": "edit hook_resid_mid, which the MLP reads through its norm",
    "set_use_split_qkv_input": (
        "edit hook_q, hook_k and hook_v; routes by input are probes.path_patching"
    ),
    "to_single_token": (
        "series are numbers; token models: lens.native has the tokenizer"
    ),
    "to_tokens": "lens.encode(series).inputs is what enters the model",
    "tokenizer": "lens.native has the tokenizer of a model that has one",
    "tokens_to_residual_directions": (
        "lens.weights.W_U[:, token], of models whose head is one matrix, lacks the last"
        " norm's gain and the head's factor; lens.readout(writes, encoded, like=stream)"
        " reads writes out with both"
    ),
}
"""Members of TransformerLens's models that a lens lacks -> the replacement."""
PIPELINES = {
    **dict.fromkeys(
        ("default_context_length", "model_context_length"), "lens.context_length"
    ),
    **dict.fromkeys(
        ("max_output_patches", "model_output_patch_size", "model_prediction_length"),
        "lens.prediction_length is the default horizon, lens.longest_pass that of one"
        " forward",
    ),
    **dict.fromkeys(
        ("predict", "predict_df", "predict_fev"),
        "lens.forecast(series, horizon) takes tensors, lists and frames; lens.native"
        " has the library's own call",
    ),
    "dtypes": "tsfm_lens.load(source, dtype=…) takes their names",
    "fit": (
        "lens.native.fit is the library's training; open what it returns by"
        " tsfm_lens.load(pipeline)"
    ),
    "forecast_type": "lens.emits is the kind of the head's output",
    "from_pretrained": "tsfm_lens.load(source)",
    "predict_quantiles": (
        "lens.forecast(series, horizon, quantiles=…), or lens.native.predict_quantiles"
    ),
    "quantiles": "lens.levels",
    "save_pretrained": "lens.native.save_pretrained(folder)",
}
"""Members of the Chronos pipelines that a lens lacks -> the replacement."""
ARGUMENTS = {
    "attention_mask": "missing values are NaN in the series",
    "decoder_input": (
        "give tokens=… or future=…, (series, step), for a token model's decoder to read"
    ),
    "padding_side": "the model's own pipeline pads",
    "past_kv_cache": "rollout=True runs the library's own rollout, with its cache",
    "prepend_bos": "the model's own pipeline adds its special tokens",
    "return_cache_object": "activations are an object, and a mapping by name",
    "return_type": (
        "the output itself is returned: logits of token models, quantiles of others; a"
        " loss is a function of it: loss=… with incl_bwd=True"
    ),
    "start_at_layer": "put a stream in place by a hook on hook_resid_pre of that layer",
}
"""Arguments of TransformerLens's forward that a lens lacks -> the replacement."""

# beyond the aliases of get_act_name; an attention call gets queries and keys that are
# rotated already, so that hook_q and hook_k are those after rotary embeddings
_SAME = {"in": "resid_pre", "rot_k": "k", "rot_q": "q"}
_DOTTED = re.compile(r"(?:(?:(\w+)_)?blocks\.(\d+)\.)?(?:([\w.]+)\.)?hook_(\w+)")
# the first lookahead keeps "decoder_blocks.3" from being a stack of that name, the
# second a hook point of a block from being a kind of branch
_COMPONENT = re.compile(
    r"(?:((?!\w*blocks\.)[a-z]\w*)\.)?(\d+|\*)(?:\.((?!hook_)[a-z_*]+)(?:\.(\d+|\*))?)?"
)
_LETTERS = re.compile(r"([a-z_]+?)_?(\d+)([a-z]\w*)?")


PATCHING = (
    "The functions of transformer_lens.patching go by token ids, and series have none:"
    " probes.activation_patching(clean, corrupted) patches every layer, position and"
    " component, lens.patch(activations, point, positions=…) any one point"
)
"""Replacement of TransformerLens's loops over patches."""


class _Parts(NamedTuple):
    """Parts of a hook point's name.

    Those of ``decoder_blocks.3.cross_attn.hook_z`` are ("z", 3, "decoder",
    "cross_attn").
    """

    short: str
    layer: int | None = None
    stack: str | None = None
    kind: str | None = None


def refuse_logits(thing: Any, name: str) -> Any:
    """Stand in for ``__getattr__`` of runs and forecasts.

    Returns:
        Nothing: it always raises.

    Raises:
        AttributeError: always. For "logits" the message says where they are; for words
            of other libraries it has ours.
    """
    kind = type(thing).__name__.lower()
    if name != "logits":
        return refuse_member(thing, name, f"a {kind}")
    raise AttributeError(
        f"a {kind} has no 'logits': lens(run.encoded) is the output of a forward,"
        " logits of token models"
    )


def refuse_shape(encoded: Any, name: str) -> Any:
    """Stand in for ``__getattr__`` of encoded batches.

    Returns:
        The attribute, where Python finds it after all.

    Raises:
        AttributeError: for "shape"; the message says how series are patched.
    """
    if name != "shape":
        return object.__getattribute__(encoded, name)
    raise AttributeError(
        f"encoded series have no 'shape': their tokens are in token_table(). {PATCHING}"
    )


def is_of_patching(hook: Any) -> bool:
    """Return whether one of TransformerLens's functions of patching made a hook."""
    # its functions bind what they patch by functools.partial
    function = getattr(hook, "func", hook)
    return getattr(function, "__module__", "") == "transformer_lens.patching"


def find_point(component: str) -> tuple[str, str]:
    """Return the hook point that a component writes at, and its head.

    The point is a name or glob; both are "" for other text.

    A head is part of "hook_z", a branch is "hook_out", a layer "hook_resid_post".
    """
    match = _COMPONENT.fullmatch(component)
    if match is None:
        return "", ""
    stack, layer, kind, head = match.groups(default="")
    if head:
        end = f"{kind}.hook_z"
    elif kind:
        end = f"{kind}.hook_out"
    else:
        end = "hook_resid_post"
    return f"{stack and stack + '_'}blocks.{layer}.{end}", head


def find_component(point: str) -> str:
    """Return the component, or glob, whose write a hook point is.

    Other text is returned as it is.
    """
    text = re.sub(
        r"^(?:(\w+)_)?blocks\.", lambda match: f"{match[1]}." if match[1] else "", point
    )
    text = re.sub(r"\.hook_(?:z|result)$", ".*", text.removesuffix(".hook_out"))
    if ".hook_" in text:
        return point
    return text


def full_name(names: Iterable[str], key: Key) -> str | None:
    """Return the hook point that a key of TransformerLens's means.

    None if it means none.
    """
    points = {name: parts for name in names if (parts := _split(name)) is not None}
    # a word of a tuple is a stack if the model has one of that name, else a kind
    query = _parse(key, {str(parts.stack) for parts in points.values()} - {""})
    if query is None:
        return None
    matches = _find_matches(points, query)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UnknownNameError(_ambiguous(key, matches, points))
    if isinstance(key, tuple) and query.layer is not None:
        layers = {
            parts.layer
            for parts in points.values()
            # the points that differ in the layer alone; no layer of theirs is negative
            if _matches(parts, query._replace(layer=parts.layer), 0)
        }
        if layers - {None}:
            raise UnknownNameError(
                f"no layer {query.layer} for {key!r}; there are {len(layers)}, numbered"
                " from 0"
            )
    if query.short in _POINTS:
        raise UnknownNameError(f"no hook point {key!r}. {_POINTS[query.short]}")
    return None


def _find_matches(points: dict[str, _Parts], query: _Parts) -> list[str]:
    """Return the hook points that have the parts that a key asks for."""
    depth: dict[str | None, int] = {}
    for parts in points.values():
        depth[parts.stack] = max(depth.get(parts.stack, 0), (parts.layer or 0) + 1)
    return [
        name
        for name, parts in points.items()
        if _matches(parts, query, depth[parts.stack])
    ]


def _split(name: str) -> _Parts | None:
    """Split the name of a hook point; None if it does not have the form of one."""
    match = _DOTTED.fullmatch(name)
    if match is None:
        return None
    stack, layer, kind, short = match.groups(default="")
    if layer:
        return _Parts(short, int(layer), stack, kind)
    # "decoder.ln_final.hook_normalized", "encoder.hook_embed",
    # "ln_final.hook_normalized"
    first, _, rest = kind.partition(".")
    if first in ("encoder", "decoder"):
        return _Parts(short, None, first, rest)
    return _Parts(short, None, "", kind)


def _parse(key: Key, stacks: set[str]) -> _Parts | None:
    """Return the parts that a key asks for, by our names.

    None if the key does not have the form of one.
    """
    if isinstance(key, str):
        if "." in key or key.startswith("hook_"):
            parts = _split(key)
            # "" would ask for points without a stack or kind, None asks for any
            return parts and _translate(
                parts._replace(stack=parts.stack or None, kind=parts.kind or None)
            )
        match = _LETTERS.fullmatch(key)
        if match is None:
            if re.fullmatch(r"[a-z_]+", key):
                return _translate(_Parts(key))
            return None
        key = (match[1], int(match[2]), match[3])
        # letters behind the layer, as in "k6a", are a kind and never a stack
        stacks = set()
    if not key or not isinstance(key[0], str):
        return None
    layer = next((part for part in key[1:2] if not isinstance(part, str)), None)
    names = [name for name in key[1:] if isinstance(name, str)]
    stack = next((name for name in names if name in stacks), None)
    kind = next((name for name in names if name != stack), None)
    if kind is not None:
        # "blocks.0.attn.hook_in" for "a": get_act_name knows the aliases of kinds, and
        # with "in" it leaves the kind alone, where "z" or "pre" would replace it
        name = get_act_name("in", 0, kind)
        kind = name.removeprefix("blocks.0.").removesuffix("hook_in").rstrip(".")
    return _translate(_Parts(key[0].removeprefix("hook_"), layer, stack, kind or None))


def _translate(query: _Parts) -> _Parts:
    """Translate TransformerLens's short names into ours.

    "mlp_out", for example, is the output of "mlp".

    Returns:
        The parts of our name.
    """
    short, layer, stack, kind = query
    if kind is not None and kind.endswith("ln_final") and short == "out":
        # TransformerLens's T5 has "decoder_ln_final"
        match = re.fullmatch(r"(encoder|decoder)_ln_final", kind)
        return _Parts("normalized", None, match[1] if match else stack, "ln_final")
    # without a layer, its aliases alone are applied
    short = get_act_name(short).rpartition("hook_")[2]
    short = _SAME.get(short, short)
    if short == "unembed":
        return _Parts("out", None, stack, "unembed")
    if kind is None and short == "out" and layer is not None:
        return _Parts("resid_post", layer, stack)
    if kind is None and short.endswith("_out"):
        return _Parts("out", layer, stack, short.removesuffix("_out"))
    return _Parts(short, layer, stack, kind)


def _matches(point: _Parts, query: _Parts, depth: int) -> bool:
    """Return whether a hook point has the parts that a key asks for.

    ``depth`` is the number of layers, from which negative layers count.
    """
    layer = query.layer
    if layer is not None and layer < 0:
        layer += depth
    if (point.short, point.layer) != (query.short, layer):
        return False
    if query.stack not in (None, point.stack):
        return False
    # "attn" is any attention of a block
    return query.kind in (None, point.kind) or (
        query.kind == "attn" and str(point.kind).endswith("_attn")
    )


def _ambiguous(key: Key, matches: list[str], points: dict[str, _Parts]) -> str:
    """Compose the message for a key that several hook points match."""
    message = f"{key!r} could be {', '.join(matches)}. Say which by its name"
    full_key = _unique_key(matches[-1], points)
    if full_key is not None:
        message += f", or as acts{list(full_key)!r}"
    message += "."
    # what get_act_name gives, which takes no stack
    by_layer_alone = isinstance(key, str) and key.startswith("blocks.")
    if by_layer_alone:
        return f"{message} {PATCHING}"
    return message


def _unique_key(name: str, points: dict[str, _Parts]) -> Key | None:
    """Return the shortest tuple that means one hook point and no other."""
    parts = points[name]
    layer = () if parts.layer is None else (parts.layer,)
    words = [word for word in (parts.stack, parts.kind) if word]
    candidates: list[Key] = [(parts.short, *layer)]
    candidates += [(parts.short, *layer, word) for word in words]
    candidates.append((parts.short, *layer, *words))
    stacks = {str(point.stack) for point in points.values()} - {""}
    for candidate in candidates:
        query = _parse(candidate, stacks)
        if query is not None and _find_matches(points, query) == [name]:
            return candidate
    return None
