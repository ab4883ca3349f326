"""Draw the pictures of docs/concepts: components, from a wiring table, and findings,
from a run.

python tools/draw_concepts.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from tsfm_lens import probes
from tsfm_lens.data import bundled
from tsfm_lens.hooks.wiring import Attention, Wiring
from tsfm_lens.models import Lens, load

OUT = Path(__file__).parent.parent / "docs" / "concepts"
STREAM = "#0072B2"
BRANCH = "#D55E00"
TEXT = "#222222"
PALE = "#666666"


class Picture:
    """SVG, from the top down."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = TEXT,
        size: int = 13,
        anchor: str = "start",
    ) -> None:
        kind = "sans-serif"
        if words.startswith(("hook", ".", "enc", "dec", "blocks")):
            kind = "ui-monospace, monospace"
        font = f'font-family="{kind}" font-size="{size}"'
        self.parts.append(
            f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}"'
            f" {font}>{escape(words)}</text>"
        )

    def line(
        self,
        points: list[tuple[float, float]],
        colour: str,
        arrow: bool = False,
        width: float = 2,
    ) -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        end = ""
        if arrow:
            end = ' marker-end="url(#tip)"'
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}"'
            f' stroke-width="{width}"{end}/>'
        )

    def dot(self, x: float, y: float, filled: bool) -> None:
        fill = "white"
        if filled:
            fill = BRANCH
        self.parts.append(
            f'<circle cx="{x}" cy="{y}" r="5" fill="{fill}" stroke="{BRANCH}"'
            ' stroke-width="2"/>'
        )

    def box(self, x: float, y: float, width: float, height: float) -> None:
        size = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.parts.append(f'<rect {size} rx="6" fill="#FBEFE6" stroke="{BRANCH}"/>')

    def written(self, width: float, height: float, title: str) -> str:
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4"'
            ' markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8'
            f' z" fill="{BRANCH}"/></marker></defs>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            ' role="img">'
        )
        body = (
            f'<title>{escape(title)}</title>{tip}<rect width="{width}"'
            f' height="{height}" fill="white"/>'
        )
        return "\n".join([head + body, *self.parts, "</svg>\n"])


def components(wiring: Wiring) -> str:
    """What writes to the stream that is read out: a head, a branch, a layer."""
    stack, picture = wiring.output_stack, Picture()
    y, edge = 46.0, 250.0 + 58 * stack.n_heads
    dot = f"{stack.name}." if stack.name else ""
    picture.text(20, 20, "the stream", STREAM)
    picture.text(120, 20, "what writes to it, by the names of components", BRANCH)
    for layer in range(stack.n_layers):
        start = y
        for row in stack.rows(layer):
            picture.text(84, y + 16, f"{dot}{layer}.{row.kind}", BRANCH)
            heads = range(stack.n_heads) if isinstance(row, Attention) else []
            for head in heads:
                picture.box(250 + 58 * head, y, 50, 24)
                picture.text(
                    275 + 58 * head, y + 16, f".{head}", size=12, anchor="middle"
                )
            if not heads:
                picture.box(250, y, 58 * stack.n_heads - 8, 24)
            picture.line([(80, y + 12), (34, y + 12)], BRANCH, arrow=True)
            y += 32
        picture.line(
            [
                (edge + 6, start),
                (edge + 14, start),
                (edge + 14, y - 8),
                (edge + 6, y - 8),
            ],
            PALE,
        )
        picture.text(edge + 20, (start + y) / 2, f"{dot}{layer}", PALE)
        y += 10
    picture.parts.insert(
        0,
        f'<line x1="30" y1="28" x2="30" y2="{y + 14}" stroke="{STREAM}"'
        ' stroke-width="4"/>',
    )
    picture.text(40, y + 16, "read out as the forecast", STREAM)
    return picture.written(edge + 120, y + 30, f"Components of {wiring.architecture}")


def findings(lens: Lens) -> str:
    """The effect of every cross-attention head over windows of one series: size, range,
    significance.
    """
    run = lens.run(bundled("co2"), 24, windows=12, holdout=True)
    data = probes.ablation_effects(run, components=["decoder.*.cross_attn.*"])
    low, mid, high = (
        data[f"mean_shift_{part}"].values for part in ("low", "size", "high")
    )
    left = 200.0
    right = 680.0
    top = float(high.max())

    def at(value: float) -> float:
        return left + (right - left) * max(value, 0.0) / top

    picture = Picture()
    y = 52.0
    picture.text(
        20, 22, "change of the forecast without a head, share of the series' range"
    )
    for index, name in enumerate(data["component"].values):
        picture.text(20, y + 4, str(name), PALE)
        picture.line([(at(float(low[index])), y), (at(float(high[index])), y)], BRANCH)
        picture.dot(
            at(float(mid[index])), y, bool(data["mean_shift_significant"].values[index])
        )
        y += 24
    for share in (0.0, top / 2, top):
        picture.text(at(share), y + 12, f"{share:.3f}", PALE, 12, "middle")
    picture.line([(left, 40), (left, y - 6)], PALE, width=1)
    picture.text(
        20,
        y + 36,
        "dot: median of 12 windows; line: their range; filled: significant for other"
        " times",
        PALE,
    )
    return picture.written(right + 40, y + 50, "Sizes and significance of effects")


def main() -> None:
    """Write both pictures."""
    lens = load("bolt-nano")
    (OUT / "components.svg").write_text(components(lens.wiring))
    (OUT / "findings.svg").write_text(findings(lens))


if __name__ == "__main__":
    main()
