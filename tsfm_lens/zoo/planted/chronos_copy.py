"""Planted induction circuit of Chronos: a value is copied from where the values before it were the last ones.

Cross-attention of T5 knows no positions, so the place to copy from is found by content. Encoder heads write into every
token the values one and two steps back. The query of the copying head is the last two values: in the decoder those that
it has written, at its first steps those of the context's end, which a head fetches from the end token. Keys count only
within the last period, which an encoder head marks by the distance to the end token; so the copy is that of one period
back and of no earlier one, whatever is alike. Being an induction circuit, it copies shorter seasons just as well; it
needs two values in a row to tell the phase, so that at the turns of a smooth season it mixes neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tsfm_lens.zoo.planted.chronos import BIN, LIMIT, NAME, ONE, START_LENGTH, WAVES, ChronosBuilder, Pairs
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import Gate, SeasonalCopy

BACKS = 2
"""How many values are compared; `examples.shape` draws shapes in which two are enough and both are needed."""

WAVE, MARK = 0.5, 0.3
"""Share of a value's squared embedding that is waves; length of a mark."""

ASIDE = (0.5 * (1 - START_LENGTH**2 / WAVE)) ** 0.5
"""How long the values are that the start token has aside, to its own: its stream is then as long as a value's."""

LOUD = 50.0
"""What the copying head writes, in embeddings; all else in the last stream is small against it."""

MATCH = 10.0
"""Score of one wave of one value that agrees."""

FINE = (1.0, 1.0, 1.0, 1.0, 0.0)
"""Weights of the waves in a comparison; the finest would take noise for another value."""

RECENT = 1.2 * 2 * MATCH * BACKS * sum(FINE)
"""Score of being in the last period: more than the best match against the worst."""

DONE_FLAG = 0.5
"""The flag that a copying head leaves behind for its backup, in lengths of what it copies."""

SURE = 30.0
"""Difference of scores by which a head looks at one kind of token and no other."""

SHARE = 0.99
"""Attention that falls on the place of one period back: all but that on similar places."""

BLOCKS = {"back1": 10, "back2": 10, "ago2": 10, "first": 1, "mark": 1}
"""Encoder: the values before, and marks. Decoder: in the directions of `back`, the values at the context's end."""

ALL = ("one", "value", "square", "filler", "wave")


@dataclass(frozen=True)
class Lengths:
    """Lengths of streams that are read through a norm: a key's of the last period, the end token's, a query's."""

    key: float = (1 + BACKS * WAVE + MARK**2) ** 0.5
    end: float = (1 + BACKS * WAVE) ** 0.5
    query: float = (1 + WAVE) ** 0.5


def period_of(seed: int) -> int:
    """Return the period of a seed's copy: 24 steps for seed 0."""
    return (24, 12, 18)[seed % 3]


def copy_canvas(
    blocks: dict[str, int], *, rule: SeasonalCopy | Gate, loud: float = 1.0, **options: Any
) -> ChronosBuilder:
    """Build a canvas whose values have waves, with logits as sharp as one bin where a single value is copied."""
    bend = sum(WAVE / len(WAVES) * (2 * torch.pi / wave) ** 2 for wave in WAVES)
    settings: dict[str, Any] = {"waves": WAVE, "sharpness": loud * BIN**-2 / bend}
    settings |= {"needs": rule.period + BACKS, "horizon": rule.period}
    return ChronosBuilder(rule, {**BLOCKS, **blocks}, **{**settings, **options})


def mark_recent(canvas: ChronosBuilder, name: str, steps: range, *, mark: str = "mark") -> str:
    """Let a head mark the tokens that have the end token so many tokens ahead of them."""
    of = canvas.basis
    canvas.head(
        name,
        match=[(SURE / ONE**0.5 * of["one"], of["eos"])],
        moves=[(of["eos"], MARK * of[mark])],
        # tokens without others so far ahead look at the one before them, the end token too, which has none ahead
        bias={-1: 1.5 * SURE, **dict.fromkeys(steps, 2 * SURE)},
    )
    if steps[0] == 1:
        canvas.draft.looks(name, "last value", [-1])
    task = f"marks tokens that have the end token {steps[0]} to {steps[-1]} tokens ahead"
    return canvas.draft.part(name, "mechanism", task)


def look_back(
    canvas: ChronosBuilder, name: str, steps: int, source: tuple[str, ...], target: str, moves: Pairs = ()
) -> str:
    """Let a head write values so many steps back; tokens that have none look at the end token, which has no value."""
    of = canvas.basis
    no_value = (SURE / ONE**0.5 * of["one"], of["eos"])
    canvas.head(name, match=[no_value], moves=[(of.span(*source), of[target]), *moves], bias={-steps: 2 * SURE})
    canvas.draft.looks(name, "every token", [steps])
    return canvas.draft.part(name, "mechanism", f"writes into every token the value {steps} before it")


def read_end(canvas: ChronosBuilder, name: str, end: float) -> str:
    """Let the first decoder token fetch the last values from the end token.

    Later tokens attend to the first token, which has no values before it.
    """
    of = canvas.basis
    # after these, stream and waves of the start token are as long as those of a value
    last = (of["back1"], end * (of["wave"] + ASIDE * of["back1"]))
    earlier = (of["back2"], ASIDE * end * of["back2"])
    to_end = (SURE * canvas.at_start, end * of["eos"])
    to_first = (SURE * canvas.at_values, 2**0.5 * of["first"])
    canvas.head(name, match=[to_end, to_first], moves=[last, earlier])
    canvas.draft.looks(name, "first forecast token", [0])
    return canvas.draft.part(name, "mechanism", "brings the last two values of the context to the start token")


def look_back_own(canvas: ChronosBuilder, name: str) -> str:
    """Let a decoder head write the value that was written before the last one.

    At the start token, which has none before it, the head looks at the token itself and writes the context's last
    value. The second-last less the last one, which the start token has aside, is then added by who reads.
    """
    of = canvas.basis
    canvas.head(name, moves=[(of["wave"], of["ago2"])], bias={-1: 2 * SURE})
    canvas.draft.looks(name, "every token", [1])
    return canvas.draft.part(name, "mechanism", "writes into every decoder token the value 1 before it")


def copying(canvas: ChronosBuilder, name: str, lengths: Lengths, *, moves: Pairs, extra: Pairs = ()) -> str:
    """Let a head look at the token of the last period before which the last two values stood."""
    of = canvas.basis
    gain = (MATCH * lengths.key * lengths.query * len(WAVES) / WAVE) ** 0.5
    fine = torch.tensor(FINE * 2, dtype=torch.float64)[:, None]
    last = (of["wave"], of["ago2"] + (of["back2"] - of["back1"]) / ASIDE)
    match = [(gain * values, gain * fine * of[f"back{back}"]) for back, values in enumerate(last, 1)]
    match.append((RECENT * lengths.query * canvas.always(), lengths.key / MARK * of["mark"]))
    return canvas.head(name, match=[*match, *extra], moves=moves)


def plant_copy(
    canvas: ChronosBuilder, lengths: Lengths, *, blocks: tuple[str, ...] = ALL, extra: Pairs = (), more: Pairs = ()
) -> tuple[str, dict[str, str]]:
    """Plant the whole circuit in the first two layers.

    Returns:
        The copying head, and the heads that feed it, by task.
    """
    of, draft, place = canvas.basis, canvas.draft, "encoder.0.self_attn"
    heads = {
        "back1": look_back(canvas, canvas.free_head(place), 1, ("wave",), "back1", [(of["eos"], of["first"])]),
        "back2": look_back(canvas, canvas.free_head(place), 2, ("wave",), "back2"),
        "mark": mark_recent(canvas, canvas.free_head(place), range(1, draft.rule.period + 1)),
        "end": read_end(canvas, canvas.free_head("decoder.0.cross_attn"), lengths.end),
        "own": look_back_own(canvas, canvas.free_head("decoder.1.self_attn")),
    }
    name = canvas.free_head("decoder.1.cross_attn")
    moves = [(of.span(*blocks), LOUD * lengths.key * of.span(*blocks)), *more]
    copying(canvas, name, lengths, moves=moves, extra=extra)
    draft.part(name, "mechanism", "copies the value of the last period that followed upon the last two values")
    for sender in heads.values():
        draft.path(sender, name)
    draft.path(heads["back1"], heads["end"], heads["own"])
    draft.path(heads["back2"], heads["end"])
    draft.path(name, "output")
    return name, heads


@planter("seasonal-copy", NAME)
def seasonal_copy(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """Plant a copy of the value one period back, by an induction circuit."""
    rule = SeasonalCopy(period=period_of(seed))
    canvas = copy_canvas({}, rule=rule, seed=seed, rotate=rotate)
    name, _ = plant_copy(canvas, Lengths())
    canvas.draft.looks(name, "forecast token", [rule.period], moves=1, weight=SHARE)
    return canvas.finish("seasonal-copy", weight_noise)


@planter("backup", NAME)
def backup(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """Plant a second copying head one layer on, which rests as long as the first has written something.

    Where the first has written, its flag sends the second one's attention to the end token, which holds no value.
    """
    rule, loud = SeasonalCopy(period=period_of(seed)), (1 + DONE_FLAG**2) ** 0.5
    canvas = copy_canvas({"done": 1}, rule=rule, seed=seed, rotate=rotate, layers=3, loud=loud)
    of, draft, lengths = canvas.basis, canvas.draft, Lengths()
    flag = (of["one"], LOUD * DONE_FLAG * lengths.key / ONE**0.5 * of["done"])
    first, heads = plant_copy(canvas, lengths, more=[flag])
    second = canvas.free_head("decoder.2.cross_attn")
    rest = (2 * RECENT * (1 + DONE_FLAG**2) ** 0.5 / DONE_FLAG * of["done"], lengths.end * of["eos"])
    moves = [(of.span(*ALL), LOUD * lengths.key * of.span(*ALL))]
    copying(canvas, second, lengths, moves=moves, extra=[rest])
    draft.part(second, "backup", "rests, and copies the same value once its primary is gone", stands_in_for=first)
    draft.looks(first, "forecast token", [rule.period], moves=1, weight=SHARE)
    draft.looks(second, "forecast token", [0])
    for sender in (first, *heads.values()):
        draft.path(sender, second)
    draft.path(second, "output")
    return canvas.finish("backup", weight_noise)


TOLERANCE = 0.3
HALF_OPEN = 0.05
"""Width of the band around the tolerance in which the gate is half open, in tolerances."""

LINEAR = 1 - ONE - WAVE
VALUE = (LINEAR / 2) ** 0.5
"""Length of the direction of the largest value."""

DRIFT = 2.0
"""Length of a mean change as large as the largest value."""

COPY_BLOCKS = ("value", "square", "filler", "wave")
PLAIN = ("value", "square", "filler")


@planter("gate", NAME)
def gate(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """Plant an induction circuit with a gate: a flag sends the copying head to the end token and its last value."""
    period = period_of(seed)
    blocks = {"lag": 3, "change": 1, "drift": 1, "walk": 1, "sink": 1}
    rule = Gate(period=period, tolerance=TOLERANCE)
    canvas = copy_canvas(blocks, rule=rule, seed=seed, rotate=rotate, needs=2 * period)
    of, draft = canvas.basis, canvas.draft
    key_square = 1 + BACKS * WAVE + MARK**2 + LINEAR
    lengths = Lengths(key=key_square**0.5, end=(1 + BACKS * WAVE + LINEAR + LINEAR + WAVE) ** 0.5)
    to_end = (2 * RECENT * (lengths.query**2 + 1) ** 0.5 * of["walk"], lengths.end * of["eos"])
    # without the last value in the end token, its write exceeds all others
    sink = (of["eos"], LOUD * lengths.end * of["sink"])
    copy, heads = plant_copy(canvas, lengths, blocks=COPY_BLOCKS, extra=[to_end], more=[sink])
    draft.looks(copy, "forecast token", [period], moves=1, weight=SHARE)
    lag = look_back(canvas, canvas.free_head("encoder.0.self_attn"), period, PLAIN, "lag")
    compare_mlp = _compare(canvas, lengths.key)
    last = _keep_last(canvas, heads["back1"].replace("encoder.0", "encoder.1"), lengths)
    drift = _average(canvas, canvas.free_head("decoder.0.cross_attn"), lengths.key)
    decide_mlp = _decide(canvas)
    draft.path(lag, compare_mlp, drift, decide_mlp, copy)
    draft.path(heads["mark"], drift)
    draft.path(last, copy)
    return canvas.finish("gate", weight_noise)


def _compare(canvas: ChronosBuilder, key: float) -> str:
    """Let an MLP write the absolute difference of every value from that one period before: relu(x) + relu(-x)."""
    of = canvas.basis
    difference = of["value"] - of["lag"][:1]
    writes = key / VALUE * of["change"]
    name = canvas.mlp("encoder.0.mlp", torch.cat([difference, -difference]), torch.cat([writes, writes]))
    return canvas.draft.part(name, "mechanism", "writes the absolute change from one period before")


def _keep_last(canvas: ChronosBuilder, name: str, lengths: Lengths) -> str:
    """Let the end token take the last value; all others, which have a value, look at it, while it has none."""
    of = canvas.basis
    to_end = (4 * SURE * lengths.key / ONE**0.5 * of["one"], lengths.end * of["eos"])
    canvas.head(name, match=[to_end], moves=[(of.span(*COPY_BLOCKS), lengths.key * of.span(*COPY_BLOCKS))])
    canvas.draft.looks(name, "last token", [1])
    return canvas.draft.part(name, "mechanism", "writes the last value into the end token")


def _average(canvas: ChronosBuilder, name: str, key: float) -> str:
    """Let a head write the mean change over the last period."""
    of = canvas.basis
    canvas.head(
        name,
        match=[(SURE * canvas.always(START_LENGTH), key / MARK * of["mark"])],
        moves=[(of["change"], key * DRIFT * of["drift"])],
    )
    rule = canvas.draft.rule
    canvas.draft.looks(name, "forecast token", range(1, rule.period + 1))
    return canvas.draft.part(name, "mechanism", "writes the mean absolute change of the last period")


def _decide(canvas: ChronosBuilder) -> str:
    """Let an MLP raise a flag if the mean change is above the tolerance: relu(x + 1/2) - relu(x - 1/2)."""
    of = canvas.basis
    tolerance, band = TOLERANCE / LIMIT, HALF_OPEN * TOLERANCE / LIMIT
    reads = [(of["drift"] / DRIFT - (tolerance + side * band / 2) * canvas.always()) / band for side in (-1, 1)]
    name = canvas.mlp("decoder.0.mlp", torch.cat(reads), torch.cat([of["walk"], -of["walk"]]))
    return canvas.draft.part(name, "mechanism", "raises a flag if that is no season")


NOISY = 1.5
"""What a loud decoy writes, in embeddings; the circuit's own heads write 0.7."""

QUIET = 0.05
"""What a sharp head that does next to nothing writes."""

SHIFT = 3.0
"""How much louder than the copy's constant part the head is that raises all logits alike."""


@planter("decoys", NAME)
def decoys(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """Plant the seasonal copy, and seven heads and an MLP that do nothing for the forecast."""
    rule = SeasonalCopy(period=period_of(seed))
    last = 1 + WAVE + (WAVE / 2) ** 2 + ONE * ((1 + SHIFT) ** 2 - 1)
    canvas = copy_canvas({"loud": 10, "still": 1}, rule=rule, seed=seed, rotate=rotate, loud=last**0.5)
    key_square = 1 + BACKS * WAVE + MARK**2
    lengths = Lengths(
        key=(key_square + NOISY**2) ** 0.5,
        end=(1 + BACKS * WAVE + NOISY**2) ** 0.5,
        query=(1 + WAVE + NOISY**2) ** 0.5,
    )
    name, heads = plant_copy(canvas, lengths)
    canvas.draft.looks(name, "forecast token", [rule.period], moves=1, weight=SHARE)
    _decoys_in_encoder(canvas, heads, key_square**0.5)
    _decoys_in_decoder(canvas, lengths)
    return canvas.finish("decoys", weight_noise)


def _decoys_in_encoder(canvas: ChronosBuilder, heads: dict[str, str], stream_length: float) -> None:
    """Add heads that share the position bias of the circuit's: sharp, one of them loud."""
    of, draft = canvas.basis, canvas.draft
    for task, length, steps in (("back1", NOISY, 1), ("back2", QUIET, 2)):
        name = heads[task].replace("encoder.0", "encoder.1")
        canvas.head(name, moves=[(of["wave"], length * stream_length / WAVE**0.5 * of["loud"])])
        draft.looks(name, "every token", [steps])
        text = "looks sharply and writes loudly" if length == NOISY else "looks sharply and writes next to nothing"
        draft.part(name, "decoy", f"{text}, to where nobody reads")


def _decoys_in_decoder(canvas: ChronosBuilder, lengths: Lengths) -> None:
    """Add loud, sharp and induction-like heads, one that lifts all logits alike, and an MLP."""
    of, draft = canvas.basis, canvas.draft
    own = canvas.head(
        canvas.free_head("decoder.1.self_attn"),
        moves=[(of["wave"], NOISY / WAVE**0.5 * of["loud"])],
        bias={0: 2 * SURE},
    )
    draft.part(own, "decoy", "writes the token's own value loudly, to where nobody reads")
    draft.looks(own, "every token", [0])
    still = canvas.free_head("decoder.0.cross_attn")
    moves = [(of["eos"], 2 * QUIET * lengths.end * of["still"])]
    canvas.head(still, match=[(SURE * canvas.always(START_LENGTH), lengths.end * of["eos"])], moves=moves)
    draft.part(still, "decoy", "looks at the end token and writes the same into every token")
    draft.looks(still, "forecast token", [0])
    like = canvas.free_head("decoder.1.cross_attn")
    copying(canvas, like, lengths, moves=[(of["wave"], LOUD * lengths.key * of["loud"])])
    draft.part(like, "decoy", "looks where the copying head looks, and writes as loudly to where nobody reads")
    draft.looks(like, "forecast token", [canvas.draft.rule.period], moves=1, weight=SHARE)
    shift = canvas.head(
        canvas.free_head("decoder.1.cross_attn"), moves=[(of["one"], SHIFT * LOUD * lengths.key * of["one"])]
    )
    draft.part(shift, "decoy", "attends to all alike and lifts the logits of all values by the same")
    signs = torch.cat([of["wave"], -of["wave"]])
    loud = 0.5 * LOUD * torch.cat([of["loud"], -of["loud"]])
    mlp = canvas.mlp("decoder.1.mlp", signs, loud)
    draft.part(mlp, "decoy", "writes the copied value loudly, to where nobody reads")
