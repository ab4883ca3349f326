"""TransformerLens's names of a hook point: short names, tuples of name, layer and kind, and its own spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tsfm_lens.errors import UnknownNameError

Key = str | tuple[str | int | None, ...]
"""A hook point's name, or (short name, layer, …) with its stack and kind of attention where several have one."""

# short name of a hook point in TransformerLens -> its name here
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
# names of TransformerLens's points that have no counterpart -> the replacement
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
    """Hook point by its parts: ``decoder_blocks.3.cross_attn.hook_z`` is ("decoder", 3, "cross_attn", "z")."""

    stack: str
    layer: int
    kind: str
    short: str


@dataclass(frozen=True)
class _Query:
    """Parts of a key; None where it leaves one open."""

    short: str
    layer: int | None = None
    stack: str | None = None
    kind: str | None = None


_FULL = re.compile(r"(?:(?:(\w+)_)?blocks\.(\d+)\.)?(?:([\w.]+)\.)?hook_(\w+)")
_LETTERS = re.compile(r"([a-z_]+?)_?(\d+)([a-z]\w*)?")


def full_name(names: Iterable[str], key: Key) -> str | None:
    """Return the one hook point that a key of TransformerLens's means; None if it means none.

    Args:
        names: every hook point of the model.
        key: a name, a short name ("pattern3"), or (short name, layer, …), where layers below 0 count from the stack's
            end and further entries name a stack, a kind of branch, or both.

    Raises:
        UnknownNameError: the key could mean several hook points, or something that has no hook point here.
    """
    places = {name: place for name in names if (place := _place(name)) is not None}
    query = _parse(key, places)
    if query is None:
        return None
    depth: dict[str, int] = {}
    for place in places.values():
        depth[place.stack] = max(depth.get(place.stack, 0), place.layer + 1)
    matches = [name for name, place in places.items() if _matches(place, query, depth[place.stack])]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UnknownNameError(_ambiguous(key, matches, places))
    if query.short in _INSTEAD:
        raise UnknownNameError(f"no hook point {key!r}. {_INSTEAD[query.short]}")
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


def _parse(key: Key, places: dict[str, _Place]) -> _Query | None:
    if isinstance(key, tuple):
        return _of_tuple(key, {place.stack for place in places.values()} - {""})
    if "." in key or key.startswith("hook_"):
        place = _place(key)
        if place is None:
            return None
        layer = place.layer if place.layer >= 0 else None
        return _translate(_Query(place.short, layer, place.stack or None, place.kind or None))
    match = _LETTERS.fullmatch(key)
    if match is None:
        return _translate(_Query(key)) if re.fullmatch(r"[a-z_]+", key) else None
    return _of_tuple((match[1], int(match[2]), match[3]), set())


def _of_tuple(key: tuple[str | int | None, ...], stacks: set[str]) -> _Query | None:
    if not key or not isinstance(key[0], str):
        return None
    short, layer, *rest = (*key, None) if len(key) == 1 else key
    if isinstance(layer, str):
        layer, rest = None, [layer, *rest]
    words = [word for word in rest if isinstance(word, str)]
    stack = next((word for word in words if word in stacks), None)
    kinds = [word for word in words if word != stack]
    kind = _KINDS.get(kinds[0], kinds[0]) if kinds else None
    return _translate(_Query(str(short).removeprefix("hook_"), layer, stack, kind or None))


def _translate(query: _Query) -> _Query:
    """Translate TransformerLens's short names into ours; "mlp_out" is the output of "mlp"."""
    if (query.kind or "").endswith("ln_final") and query.short == "out":
        # TransformerLens's T5 has "decoder_ln_final"
        match = re.fullmatch(r"(encoder|decoder)_ln_final", str(query.kind))
        return _Query("normalized", None, match[1] if match else query.stack, "ln_final")
    short = _SAME.get(query.short, query.short)
    if short == "unembed":
        return _Query("out", None, query.stack, "unembed")
    if short == "out" and query.kind is None and query.layer is not None:
        return _Query("resid_post", query.layer, query.stack)
    branch = re.fullmatch(r"(\w+)_out", short)
    if branch and query.kind is None:
        return _Query("out", query.layer, query.stack, branch[1])
    return _Query(short, query.layer, query.stack, query.kind)


def _matches(place: _Place, query: _Query, depth: int) -> bool:
    layer = -1 if query.layer is None else query.layer + depth if query.layer < 0 else query.layer
    if (place.short, place.layer) != (query.short, layer) or (query.layer is not None and layer < 0):
        return False
    if query.stack is not None and place.stack != query.stack:
        return False
    # "attn" is any attention of a block
    return query.kind in (None, place.kind) or (query.kind == "attn" and place.kind.endswith("_attn"))


def _ambiguous(key: Key, matches: list[str], places: dict[str, _Place]) -> str:
    first = places[matches[-1]]
    short, layer = (key[0], first.layer) if isinstance(key, tuple) else (first.short, first.layer)
    words = [short, *([layer] if layer >= 0 else [])]
    words += [first.stack] if len({places[name].stack for name in matches}) > 1 else []
    words += [first.kind] if len({places[name].kind for name in matches}) > 1 else []
    return f"{key!r} could be {', '.join(matches)}. Say which by its name, or as acts{words!r}."
