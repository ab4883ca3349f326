"""TransformerLens's ways to name a hook point: short names, tuples of name, layer and kind, and its own spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tsfm_lens.errors import UnknownNameError

Key = str | tuple[str | int | None, ...]
"""A hook point's name, or (short name, layer, …) with its stack and kind of attention where several have one."""

# what TransformerLens calls a hook point in short -> what it is called here
_SAME = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "in": "resid_pre",
    "key": "k",
    "mlp_post": "post",
    "mlp_pre": "pre",
    "query": "q",
    "rot_k": "k",
    "rot_q": "q",
    "value": "v",
}
_KINDS = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
# names of TransformerLens's points that have no counterpart -> what to use
_INSTEAD = {
    "mid": "The MLPs here have no norm inside: hook_post is what enters the output matrix.",
    "normalized": "Of norms only the last of a stack has a hook point, ln_final.hook_normalized, after its gain; "
    "acts.apply_ln_to_stack(stack, layer) gives what TransformerLens calls so, before the gain, of any norm.",
    "pos_embed": "What a model adds for positions is part of hook_embed, the stream's first value.",
    "pre_linear": "The second half of a gated layer has no hook point; lens.weights.mlp(layer).W_gate makes it.",
    "scale": "The scale of a norm has no hook point; acts.apply_ln_to_stack(stack, layer) divides by it.",
    "tokens": "Tokens are in lens.encode(series).inputs.",
    **dict.fromkeys(
        ("attn_in", "k_input", "mlp_in", "q_input", "v_input"),
        "A branch reads the stream, hook_resid_pre or hook_resid_mid, through its norm; edit it there.",
    ),
}


@dataclass(frozen=True)
class _Place:
    """A hook point by its parts: ``decoder_blocks.3.cross_attn.hook_z`` is ("decoder", 3, "cross_attn", "z")."""

    stack: str
    layer: int
    kind: str
    short: str


@dataclass(frozen=True)
class _Asked:
    """What a key asks for; None where it says nothing."""

    short: str
    layer: int | None = None
    stack: str | None = None
    kind: str | None = None


_FULL = re.compile(r"(?:(?:(\w+)_)?blocks\.(\d+)\.)?(?:([\w.]+)\.)?hook_(\w+)")
_LETTERS = re.compile(r"([a-z_]+?)_?(\d+)([a-z]\w*)?")


def full_name(names: Iterable[str], key: Key) -> str | None:
    """The one hook point that a key of TransformerLens's means; None if it means none.

    Args:
        names: every hook point of the model.
        key: a name, a short name ("pattern3"), or (short name, layer, …), where layers below 0 count from the stack's
            end and further entries name a stack, a kind of branch, or both.

    Raises:
        UnknownNameError: the key could mean several hook points, or something that has no hook point here.
    """
    places = {name: place for name in names if (place := _place(name)) is not None}
    asked = _asked(key, places)
    if asked is None:
        return None
    depth: dict[str, int] = {}
    for place in places.values():
        depth[place.stack] = max(depth.get(place.stack, 0), place.layer + 1)
    found = [name for name, place in places.items() if _is_meant(place, asked, depth[place.stack])]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownNameError(_ambiguous(key, found, places))
    if asked.short in _INSTEAD:
        raise UnknownNameError(f"no hook point {key!r}. {_INSTEAD[asked.short]}")
    return None


def _place(name: str) -> _Place | None:
    match = _FULL.fullmatch(name)
    if match is None:
        return None
    stack, layer, kind, short = match.groups()
    if layer is None:
        # "decoder.ln_final.hook_normalized", "encoder.hook_embed", "ln_final.hook_normalized"
        parts = (kind or "").split(".")
        stack = parts.pop(0) if parts[0] in ("encoder", "decoder") else ""
        kind = ".".join(parts)
    return _Place(stack or "", -1 if layer is None else int(layer), kind or "", short)


def _asked(key: Key, places: dict[str, _Place]) -> _Asked | None:
    if isinstance(key, tuple):
        return _of_tuple(key, {place.stack for place in places.values()} - {""})
    if "." in key or key.startswith("hook_"):
        place = _place(key)
        if place is None:
            return None
        layer = place.layer if place.layer >= 0 else None
        return _known(_Asked(place.short, layer, place.stack or None, place.kind or None))
    match = _LETTERS.fullmatch(key)
    if match is None:
        return _known(_Asked(key)) if re.fullmatch(r"[a-z_]+", key) else None
    return _of_tuple((match[1], int(match[2]), match[3]), set())


def _of_tuple(key: tuple[str | int | None, ...], stacks: set[str]) -> _Asked | None:
    if not key or not isinstance(key[0], str):
        return None
    short, layer, *rest = (*key, None) if len(key) == 1 else key
    if isinstance(layer, str):
        layer, rest = None, [layer, *rest]
    words = [word for word in rest if isinstance(word, str)]
    stack = next((word for word in words if word in stacks), None)
    kinds = [word for word in words if word != stack]
    kind = _KINDS.get(kinds[0], kinds[0]) if kinds else None
    return _known(_Asked(str(short).removeprefix("hook_"), layer, stack, kind or None))


def _known(asked: _Asked) -> _Asked:
    """With TransformerLens's short names told in ours; "mlp_out" is what "mlp" puts out."""
    if (asked.kind or "").endswith("ln_final") and asked.short == "out":
        # TransformerLens's T5 has "decoder_ln_final"
        named = re.fullmatch(r"(encoder|decoder)_ln_final", str(asked.kind))
        return _Asked("normalized", None, named[1] if named else asked.stack, "ln_final")
    short = _SAME.get(asked.short, asked.short)
    if short == "unembed":
        return _Asked("out", None, asked.stack, "unembed")
    if short == "out" and asked.kind is None and asked.layer is not None:
        return _Asked("resid_post", asked.layer, asked.stack)
    branch = re.fullmatch(r"(\w+)_out", short)
    if branch and asked.kind is None:
        return _Asked("out", asked.layer, asked.stack, branch[1])
    return _Asked(short, asked.layer, asked.stack, asked.kind)


def _is_meant(place: _Place, asked: _Asked, depth: int) -> bool:
    layer = -1 if asked.layer is None else asked.layer + depth if asked.layer < 0 else asked.layer
    if (place.short, place.layer) != (asked.short, layer) or (asked.layer is not None and layer < 0):
        return False
    if asked.stack is not None and place.stack != asked.stack:
        return False
    # "attn" is any attention of a block
    return asked.kind in (None, place.kind) or (asked.kind == "attn" and place.kind.endswith("_attn"))


def _ambiguous(key: Key, found: list[str], places: dict[str, _Place]) -> str:
    first = places[found[-1]]
    short, layer = (key[0], first.layer) if isinstance(key, tuple) else (first.short, first.layer)
    words = [short, *([layer] if layer >= 0 else [])]
    words += [first.stack] if len({places[name].stack for name in found}) > 1 else []
    words += [first.kind] if len({places[name].kind for name in found}) > 1 else []
    return f"{key!r} could be {', '.join(found)}. Say which by its name, or as acts{words!r}."
