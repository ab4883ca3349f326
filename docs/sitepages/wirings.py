"""Hook points drawn on each architecture, and the steps that its tokens cover: from
wirings and from a tiny model.
"""

from __future__ import annotations

import hashlib
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from sitepages.drawing import CACHE, sources
from sitepages.writing import plain, write
from tsfm_lens.core.errors import MissingExtraError
from tsfm_lens.hooks import Attention
from tsfm_lens.models import Architecture, Lens, architectures, load
from tsfm_lens.testing import tiny

FOLDER = "concepts/generated"
STEPS = 48  # of the series whose tokens are drawn
# pixels: of text, a stack, where branches begin, beside them
_LINE = 17
_COLUMN = 365
_BOX = 90
_PAD = 14
_CHARACTER = 6.3  # pixels of a letter in type of 10.5 px


def write_wirings() -> None:
    """``hook-points.md``, to be included, with a tab per architecture; and each drawing
    as a file of its own.
    """
    tabs = []
    for name, architecture in architectures().items():
        drawing = _kept(name, architecture)
        write(f"{FOLDER}/hook-points-{name}.md", _raw(drawing))
        tabs.append(
            f"::::{{tab-item}} {plain(architecture.title)}\n{_raw(drawing)}::::"
        )
    write(
        f"{FOLDER}/hook-points.md", ":::::{tab-set}\n" + "\n\n".join(tabs) + "\n:::::\n"
    )


def _raw(html: str) -> str:
    return f"```{{raw}} html\n{html}```\n"


def _kept(name: str, architecture: Architecture) -> str:
    """The drawing, from the cache where the package has not changed."""
    key = hashlib.sha256(
        f"{sources()}{name}{_LINE}{_COLUMN}{_BOX}".encode()
    ).hexdigest()[:32]
    file = CACHE / "wirings" / f"{key}.html"
    if not file.exists():
        try:
            lens = load(tiny(name))
        except MissingExtraError as error:
            return f"<p>{escape(str(error))}</p>\n"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(drawn(lens, architecture.title))
    return file.read_text()


def drawn(lens: Lens, title: str) -> str:
    """HTML with the stacks of a model side by side, and under them its tokens."""
    stacks = [_stack(lens, index) for index in range(len(lens.wiring.stacks))]
    height = max(tall for _, tall in stacks)
    columns = "".join(
        f'<g transform="translate({index * _COLUMN},0)">{marks}</g>'
        for index, (marks, _) in enumerate(stacks)
    )
    wide = _COLUMN * len(stacks)
    label = f"Hook points of {title}"
    parts = [_svg(columns, wide, height, label)]
    if not getattr(lens.adapter, "integers", False):
        parts.append(_tokens(lens, title))
    return "\n".join(parts) + "\n"


def _svg(marks: str, width: float, height: float, label: str) -> str:
    return (
        f'<div class="tsfm-wiring"><svg role="img" aria-label="{escape(label)}"'
        f' viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}">{marks}</svg></div>'
    )


def _stack(lens: Lens, index: int) -> tuple[str, int]:
    """One stack from its embedding to its last norm, with a block in full."""
    stack = lens.wiring.stacks[index]
    prefix = ""
    if stack.name:
        prefix = f"{stack.name}."
    block = "blocks"
    if stack.name:
        block = f"{stack.name}_blocks"
    table = dict(lens.hook_table())
    marks = [_text(0, 14, stack.name or "the stack", "tsfm-title")]
    y = 40
    top = 30
    marks.append(_point(y, f"{prefix}hook_embed"))
    y += 2 * _LINE
    start = y - _LINE + 2
    marks.append(
        _text(_PAD + 16, y, f"{block}.0 to {block}.{stack.n_layers - 1}", "tsfm-note")
    )
    y += _LINE + 6
    names = [
        name.removeprefix(f"{block}.0.")
        for name in table
        if name.startswith(f"{block}.0.")
    ]
    writers = {writer.kind: writer for writer in stack.writers}
    for branch, own in groupby(names, key=lambda name: name.rpartition(".")[0]):
        hooks = [name.rpartition(".")[2] for name in own]
        if not branch:
            for hook in hooks:
                marks.append(_point(y, hook))
                y += _LINE + 8
            continue
        lines = [
            _about(branch, writers[branch], stack),
            *_by_axes(hooks, {h: table[f"{block}.0.{branch}.{h}"] for h in hooks}),
        ]
        box, tall = _branch(y - 12, lines)
        marks.append(box)
        y += tall + 16
    for layers, text in _exceptions(stack):
        marks.append(_text(_PAD + 16, y, f"{layers}: {text}", "tsfm-note"))
        y += _LINE
    stop = y - 6
    marks.insert(
        1,
        f'<rect class="tsfm-block" x="4" y="{start}" width="{_COLUMN - 24}"'
        f' height="{stop - start}" rx="4"/>',
    )
    y += _LINE + 4
    for name in (f"{prefix}ln_final.hook_normalized", "unembed.hook_out"):
        if name in table and (
            name != "unembed.hook_out" or index == len(lens.wiring.stacks) - 1
        ):
            marks.append(_point(y, f"{name}   {table[name]}"))
            y += _LINE + 8
    marks.insert(
        1,
        f'<line class="tsfm-stream" x1="{_PAD}" x2="{_PAD}" y1="{top}"'
        f' y2="{y - _LINE}"/>',
    )
    return "".join(marks), y + 4


def _about(kind: str, writer: Any, stack: Any) -> str:
    """What a branch is, in a line."""
    if not isinstance(writer, Attention):
        texts = [kind]
    else:
        texts = [kind, f"over {'other series' if writer.over == 'variate' else 'time'}"]
        if writer.keys_from and writer.keys_from != stack.name:
            texts[1:] = [f"reads the {writer.keys_from}"]
        if writer.n_kv_heads:
            texts.append("grouped queries")
    if writer.post_norm:
        texts.append("a norm before the stream")
    if writer.mix is not None:
        texts.append("rescales the stream")
    return ", ".join(texts)


def _by_axes(hooks: list[str], axes: dict[str, str]) -> list[str]:
    """Hooks of a branch in order, those of the same axes in one line."""
    lines = []
    for shape, same in groupby(hooks, key=axes.__getitem__):
        lines.append(f"{' '.join(same)}\t{shape}")
    return lines


def _exceptions(stack: Any) -> list[tuple[str, str]]:
    """Layers with other branches than the rest, in words."""
    found = []
    for layer, writers in stack.exceptions.items():
        kinds = [
            (
                f"{writer.kind} over other series"
                if getattr(writer, "over", "") == "variate"
                else writer.kind
            )
            for writer in writers
        ]
        found.append((f"layer {layer} here", ", ".join(kinds)))
    return found


def _branch(y: float, lines: list[str]) -> tuple[str, float]:
    """A box beside the stream, with an arrow that reads and one that writes."""
    rows = [
        part
        for line in lines[1:]
        for part in (line.split("\t")[0], f"    {line.split(chr(9))[1]}")
    ]
    tall = _LINE * (1 + len(rows)) + 10
    marks = [
        f'<path class="tsfm-arrow" d="M {_PAD} {y + 8} H {_BOX}" marker-end="none"/>',
        f'<path class="tsfm-arrow" d="M {_BOX} {y + tall - 8} H {_PAD + 8}"/>',
        f'<path class="tsfm-head" d="M {_BOX} {y + 8} l -7 -4 v 8 z"/>',
        f'<path class="tsfm-head" d="M {_PAD + 1} {y + tall - 8} l 7 -4 v 8 z"/>',
        (
            f'<rect class="tsfm-branch" x="{_BOX}" y="{y}"'
            f' width="{_COLUMN - 24 - _BOX - 4}" height="{tall}" rx="4"/>'
        ),
        _text(_BOX + 8, y + _LINE, lines[0], "tsfm-strong"),
    ]
    for position, row in enumerate(rows):
        kind = "tsfm-hook"
        if row.startswith("    "):
            kind = "tsfm-note"
        marks.append(
            _text(
                _BOX + 8 + (14 if kind == "tsfm-note" else 0),
                y + _LINE * (position + 2),
                row.strip(),
                kind,
            )
        )
    return "".join(marks), tall


def _point(y: float, name: str) -> str:
    """A point on the stream."""
    hook, _, axes = name.partition("   ")
    text = _text(_PAD + 16, y + 4, hook, "tsfm-hook")
    if axes:
        text += _text(_PAD + 24 + _CHARACTER * len(hook), y + 4, axes, "tsfm-note")
    return f'<circle class="tsfm-dot" cx="{_PAD}" cy="{y}" r="5"/>{text}'


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


def _tokens(lens: Lens, title: str) -> str:
    """The tokens of a series of 48 steps, in time; those that cover no step stand at
    the end.
    """
    values = 10 + np.sin(np.arange(STEPS) / 4)
    table = lens.encode([values.tolist()]).token_table()
    first = int(min(table["start"].min(), -STEPS))
    last = int(max(table["stop"].max(), 1))
    special = table[table["special"] != ""]
    scale = 690 / (last - first + 2 * len(special) + 1)
    marks = [
        _text(
            0,
            14,
            f"Tokens of {STEPS} steps, 0 is the first one forecast; sizes of this tiny"
            " model",
            "tsfm-note",
        )
    ]
    for row in table[table["special"] == ""].itertuples():
        x = (row.start - first) * scale
        wide = (row.stop - row.start) * scale
        kind = "tsfm-token"
        if row.start >= 0:
            kind = "tsfm-ahead"
        marks.append(
            f'<rect class="{kind}" x="{x:.1f}" y="24" width="{max(wide - 1.5, 1):.1f}"'
            ' height="22"/>'
        )
    for position, row in enumerate(special.itertuples()):
        x = (last - first + 1 + 2 * position) * scale
        marks.append(
            f'<rect class="tsfm-special" x="{x:.1f}" y="24"'
            f' width="{max(1.6 * scale, 8):.1f}" height="22"/>'
        )
        marks.append(_text(max(x - 8, 0), 78, str(row.special), "tsfm-note"))
    for step in sorted({first, -STEPS, 0, last}):
        if step == last and not (table["stop"] > 0).any():
            continue
        marks.append(_text((step - first) * scale, 62, str(step), "tsfm-note"))
    return _svg("".join(marks), 730, 84, f"Tokens of {title}")
