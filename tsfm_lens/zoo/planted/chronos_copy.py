"""The planted induction circuit of Chronos: a value is copied from where the values before it were the last ones.

Cross-attention of T5 knows no positions, so the place to copy from is found by content. Encoder heads write into every
token the values one, two and three steps back. The query of the copying head is the last three values: in the decoder
those that it has written, at its first steps those of the context's end, which a head fetches from the end token. Keys
count only within the last period, which an encoder head marks by the distance to the end token; so the copy is that of
one period back and of no earlier one, whatever is alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tsfm_lens.zoo.planted.card import Attends, Part
from tsfm_lens.zoo.planted.chronos import BIN, CONTEXT, ONE, WAVES, Canvas
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.proving import finished
from tsfm_lens.zoo.planted.rules import SeasonalCopy

__all__ = ["PERIOD", "WAVE", "Circuit", "copy_canvas", "plant_copy"]

PERIOD = 24
HORIZON = 24
BACKS = 2
"""How many values are compared; `examples.shape` draws shapes in which two are enough and both are needed."""

WAVE = 0.5
"""Share of a value's squared embedding that is waves."""

MARK = 0.3
START = 0.5
LOUD = 50.0
"""What the copying head writes, in embeddings; all else in the last stream is small against it."""

MATCH = 10.0
"""Score of one wave of one value that agrees."""

FINE = (1.0, 1.0, 1.0, 1.0, 0.0)
"""Weights of the waves in a comparison; the finest would take noise for another value."""

RECENT = 1.2 * 2 * MATCH * BACKS * sum(FINE)
"""Score of being in the last period: more than the best match against the worst."""

DONE = 0.5
"""The flag that the copying head leaves behind, in lengths of what it copies."""

SURE = 30.0
"""Difference of scores by which a head looks at one kind of token and no other."""

BLOCKS = {"back1": 10, "back2": 10, "ago2": 10, "first": 1, "mark": 1}
"""Encoder: the values before, and marks. Decoder: in the same directions of `back`, those at the context's end."""

ALL = ("one", "value", "square", "filler", "wave")


@dataclass
class Circuit:
    """What a card says, collected while heads are given their tasks."""

    parts: list[Part] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    attends: list[Attends] = field(default_factory=list)

    def add(self, component: str, does: str, *, role: Any = "mechanism", stands_in_for: str | None = None) -> str:
        """Note a part."""
        self.parts.append(Part(component=component, role=role, does=does, stands_in_for=stands_in_for))
        return component

    def looks(self, component: str, query: Any, *back: int, moves: int = 0) -> None:
        """Note where a head looks, with nearly all of its attention."""
        self.attends.append(Attends(component=component, query=query, back=back, moves=moves, weight=0.99))

    def feeds(self, receiver: str, *senders: str) -> None:
        """Note paths."""
        self.edges += [(sender, receiver) for sender in senders]

    def fields(self) -> dict[str, Any]:
        """The card's fields."""
        return {"parts": tuple(self.parts), "edges": tuple(self.edges), "attends": tuple(self.attends)}


@dataclass(frozen=True)
class Lengths:
    """Lengths of streams that are read through a norm: a key's of the last period, the end token's, a query's."""

    key: float = (1 + BACKS * WAVE + MARK**2) ** 0.5
    end: float = (1 + BACKS * WAVE) ** 0.5
    query: float = (1 + WAVE) ** 0.5


def copy_canvas(blocks: dict[str, int] | None = None, *, loud: float = 1.0, **options: Any) -> Canvas:
    """A canvas whose values have waves, and whose logits are as sharp as one bin where a single value is copied.

    Args:
        blocks: further directions of the stream.
        loud: length of the last stream, in that of the copied value.
        options: of the canvas.
    """
    bend = sum(WAVE / len(WAVES) * (2 * torch.pi / wave) ** 2 for wave in WAVES)
    settings = {"horizon": HORIZON, "waves": WAVE, "start": START, "sharpness": loud * BIN**-2 / bend}
    return Canvas({**BLOCKS, **(blocks or {})}, **{**settings, **options})


def mark_recent(canvas: Canvas, circuit: Circuit, name: str, steps: range, *, mark: str = "mark") -> str:
    """Let a head mark the tokens that have the end token so many tokens ahead of them."""
    of = canvas.basis
    canvas.head(
        name,
        match=[(SURE / ONE**0.5 * of["one"], of["eos"])],
        moves=[(of["eos"], MARK * of[mark])],
        bias={0: -2 * SURE, **dict.fromkeys(steps, 2 * SURE)},
    )
    if steps[0] == 1:
        circuit.looks(name, "last value", -1)
    return circuit.add(name, f"marks tokens that have the end token {steps[0]} to {steps[-1]} tokens ahead")


def look_back(canvas: Canvas, circuit: Circuit, name: str, steps: int) -> str:
    """Let a head write the value so many steps back; tokens that have none look at the end token, which has no value."""
    of = canvas.basis
    moves = [(of["wave"], of[f"back{steps}"])]
    if steps == 1:
        moves.append((of["eos"], of["first"]))
    canvas.head(
        name, match=[(SURE / ONE**0.5 * of["one"], of["eos"])], moves=moves, bias={-steps: 2 * SURE}
    )
    circuit.looks(name, "every token", steps)
    return circuit.add(name, f"writes into every token the value {steps} before it")


def read_end(canvas: Canvas, circuit: Circuit, name: str, end: float) -> str:
    """Let the first decoder token fetch the last values from the end token; later ones look where nothing is.

    Args:
        canvas, circuit, name: of the model and the head.
        end: length of the end token's stream.
    """
    of = canvas.basis
    # after these, stream and waves of the start token are as long as those of a value
    last = (of["back1"], end * (of["wave"] + 0.5 * of["back1"]))
    earlier = (of["back2"], 0.5 * end * of["back2"])
    to_end = (2 * SURE * of["start"], end * of["eos"])
    to_first = (SURE / ONE**0.5 * of["one"], 2**0.5 * of["first"])
    canvas.head(name, match=[to_end, to_first], moves=[last, earlier])
    circuit.looks(name, "first forecast token", 0)
    return circuit.add(name, "brings the last two values of the context to the start token")


def look_back_own(canvas: Canvas, circuit: Circuit, name: str) -> str:
    """Let a decoder head write the value that was written before the last one.

    At the start token, which has none before it, the head looks at the token itself and writes the context's last
    value. The second-last less the last one, which the start token has aside, is then added by who reads.
    """
    of = canvas.basis
    canvas.head(name, moves=[(of["wave"], of["ago2"])], bias={-1: 2 * SURE})
    circuit.looks(name, "every token", 1)
    return circuit.add(name, "writes into every decoder token the value 1 before it")


def copying(canvas: Canvas, name: str, lengths: Lengths, *, moves: Any, extra: Any = ()) -> str:
    """Let a head look at the token of the last period before which the last two values stood.

    Args:
        canvas, name: of the model and the head.
        lengths: of the streams that are read.
        moves: what is copied.
        extra: a further comparison.
    """
    of = canvas.basis
    gain = (MATCH * lengths.key * lengths.query * len(WAVES) / WAVE) ** 0.5
    fine = torch.tensor(FINE * 2, dtype=torch.float64)[:, None]
    last = (of["wave"], of["ago2"] + 2 * (of["back2"] - of["back1"]))
    match = [(gain * values, gain * fine * of[f"back{back}"]) for back, values in enumerate(last, 1)]
    always = of["one"] / ONE**0.5 + of["start"] / START
    match.append((RECENT * lengths.query * always, lengths.key / MARK * of["mark"]))
    return canvas.head(name, match=[*match, *extra], moves=moves)


def plant_copy(
    canvas: Canvas,
    circuit: Circuit,
    *,
    lengths: Lengths = Lengths(),
    copied: tuple[str, ...] = ALL,
    extra: Any = (),
    more: Any = (),
) -> tuple[str, dict[str, str]]:
    """Plant the whole circuit in the first two layers.

    Args:
        canvas, circuit: of the model.
        lengths: of streams.
        copied: blocks of the stream that are copied.
        extra: a further comparison of the copying head.
        more: what it moves besides.

    Returns:
        The copying head, and the encoder's heads by what they do.
    """
    place = "encoder.0.self_attn"
    heads = {f"back{back}": look_back(canvas, circuit, canvas.free_head(place), back) for back in (1, 2)}
    heads["mark"] = mark_recent(canvas, circuit, canvas.free_head(place), range(1, PERIOD + 1))
    reader = read_end(canvas, circuit, canvas.free_head("decoder.0.cross_attn"), lengths.end)
    own = look_back_own(canvas, circuit, canvas.free_head("decoder.1.self_attn"))
    of = canvas.basis
    moves = [(of.span(*copied), LOUD * lengths.key * of.span(*copied)), *more]
    name = canvas.free_head("decoder.1.cross_attn")
    copying(canvas, name, lengths, moves=moves, extra=extra)
    circuit.add(name, "copies the value of the last period that followed upon the last two values")
    circuit.feeds(reader, heads["back1"], heads["back2"])
    circuit.feeds(own, reader)
    circuit.feeds(name, *heads.values(), reader, own)
    circuit.feeds("output", name)
    return name, heads


def copy_card(canvas: Canvas, circuit: Circuit, mechanism: str, seed: int, rotate: bool, noise: float) -> Planted:
    """Prove a seasonal copy and write its card."""
    return finished(
        canvas.native,
        allowed=2 * BIN,
        mechanism=mechanism,
        architecture="chronos",
        seed=seed,
        rotated=rotate,
        weight_noise=noise,
        rule=SeasonalCopy(period=PERIOD),
        context=(PERIOD + BACKS, CONTEXT),
        horizon=HORIZON,
        **circuit.fields(),
    )


@planter("seasonal-copy", "chronos")
def seasonal_copy(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """The value one period back, by an induction circuit."""
    canvas, circuit = copy_canvas(seed=seed, rotate=rotate), Circuit()
    name, _ = plant_copy(canvas, circuit)
    circuit.looks(name, "forecast token", PERIOD, moves=1)
    return copy_card(canvas, circuit, "seasonal-copy", seed, rotate, weight_noise)


@planter("backup", "chronos")
def backup(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """The same with a second copying head one layer on, which rests as long as the first has written something.

    Where the first has written, its flag sends the second one's attention to the end token, which holds no value.
    """
    canvas = copy_canvas({"done": 1}, seed=seed, rotate=rotate, layers=3, loud=(1 + DONE**2) ** 0.5)
    circuit, lengths, of = Circuit(), Lengths(), canvas.basis
    flag = (of["one"], LOUD * DONE * lengths.key / ONE**0.5 * of["done"])
    first, heads = plant_copy(canvas, circuit, more=[flag])
    circuit.looks(first, "forecast token", PERIOD, moves=1)
    second = canvas.free_head("decoder.2.cross_attn")
    rest = (2 * RECENT * (1 + DONE**2) ** 0.5 / DONE * of["done"], lengths.end * of["eos"])
    moves = [(of.span(*ALL), LOUD * lengths.key * of.span(*ALL))]
    copying(canvas, second, lengths, moves=moves, extra=[rest])
    circuit.add(
        second, "copies the same value once the first copying head is gone", role="backup", stands_in_for=first
    )
    circuit.looks(second, "forecast token", 0)
    circuit.feeds(second, first, *(sender for sender, receiver in circuit.edges if receiver == first))
    circuit.feeds("output", second)
    return copy_card(canvas, circuit, "backup", seed, rotate, weight_noise)
