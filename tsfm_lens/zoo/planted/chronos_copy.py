"""Planted induction circuit of Chronos.

A value is copied from where the values before it were the last ones. :func:`plant_copy`
plants the circuit; the functions declared below it plant it alone, with a backup, with
a gate, or with decoys. The model is built by
:class:`~tsfm_lens.zoo.planted.chronos.ChronosBuilder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tsfm_lens.zoo.planted.chronos import (
    BIN,
    LIMIT,
    NAME,
    ONE,
    START_LENGTH,
    WAVES,
    ChronosBuilder,
    Pairs,
    Steps,
)
from tsfm_lens.zoo.planted.draft import steps_ago
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import Gate, Reads, SeasonalCopy

BACKS = 2
"""How many values are compared.

`rules.shape` draws shapes in which two are enough and both are needed.
"""
WAVE = 0.5
"""Share of a value's squared embedding that is waves."""
MARK = 0.3
"""Length of a mark."""
ASIDE = (0.5 * (1 - START_LENGTH**2 / WAVE)) ** 0.5
"""Length of the value that the start token holds aside, added to its own.

With it, the stream of the start token is as long as a value's.
"""
LOUD = 50.0
"""What the copying head writes, in embeddings.

All else in the last stream is small against it.
"""
MATCH = 10.0
"""Score of one wave of one value that agrees."""
FINE = (1.0, 1.0, 1.0, 1.0, 0.0)
"""Weights of the waves in a comparison; the finest would take noise for another value.
"""
RECENT = 1.2 * 2 * MATCH * BACKS * sum(FINE)
"""Score of being in the last period: more than the best match against the worst."""
DONE_FLAG = 0.5
"""Flag that a copying head writes for its backup, in lengths of what it copies."""
SURE = 30.0
"""Difference of scores by which a head looks at one kind of token and no other."""
SHARE = 0.99
"""Attention on the value one period back: all but that on similar values."""
BLOCKS = {"back1": 10, "back2": 10, "ago2": 10, "first": 1, "mark": 1}
"""Blocks of the encoder's stream: the values before, and marks.

In the decoder, the directions of `back` hold the values at the context's end.
"""
ALL = ("one", "value", "square", "filler", "wave")


@dataclass(frozen=True)
class Lengths:
    """Lengths of streams that are read through a norm.

    Attributes:
        key: of a token of the last period, as a key.
        end: of the end token.
        query: of a query.
    """

    key: float = (1 + BACKS * WAVE + MARK**2) ** 0.5
    end: float = (1 + BACKS * WAVE) ** 0.5
    query: float = (1 + WAVE) ** 0.5


def copy_rule(reads: Reads, seed: int, periods: int = 1) -> SeasonalCopy:
    """Return the copy of a seed's period, which is 24 steps for seed 0.

    It is for a mechanism that reads so many periods.
    """
    period = (24, 12, 18)[seed % 3]
    return SeasonalCopy(period=period, ago=steps_ago(reads, periods * period, period))


def copy_canvas(
    blocks: dict[str, int],
    *,
    rule: SeasonalCopy | Gate,
    loud: float = 1.0,
    **options: Any,
) -> ChronosBuilder:
    """Build a model without tasks, whose embeddings of values have waves.

    Logits are as sharp as one bin where a single value is copied.
    """
    bend = sum(WAVE / len(WAVES) * (2 * torch.pi / wave) ** 2 for wave in WAVES)
    settings = {
        "sharpness": loud * BIN**-2 / bend,
        "needs": rule.period + BACKS,
        **options,
    }
    return ChronosBuilder(
        rule, {**BLOCKS, **blocks}, waves=WAVE, horizon=rule.period, **settings
    )


def mark_recent(
    canvas: ChronosBuilder, name: str, steps: Steps, *, mark: str = "mark"
) -> str:
    """Let a head mark the tokens that stand so many steps before the end token."""
    basis = canvas.basis
    last = ("last value", [-1]) if steps[0] == 1 else ()
    return canvas.head(
        name,
        f"marks tokens that have the end token {steps[0]} to {steps[-1]} tokens ahead",
        *last,
        match=[(SURE / ONE**0.5 * basis["one"], basis["eos"])],
        moves=[(basis["eos"], MARK * basis[mark])],
        # tokens without others so far ahead look at the one before them, the end token
        # too, which has none ahead
        bias={-1: 1.5 * SURE, **dict.fromkeys(steps, 2 * SURE)},
    )


def look_back(
    canvas: ChronosBuilder,
    name: str,
    steps: int,
    source: tuple[str, ...],
    target: str,
    moves: Pairs = (),
) -> str:
    """Let a head write values so many steps back.

    Tokens that have none look at the end token, which has no value.
    """
    basis = canvas.basis
    task = f"writes into every token the value {steps} before it"
    match = [(SURE / ONE**0.5 * basis["one"], basis["eos"])]
    moves = [(basis.span(*source), basis[target]), *moves]
    return canvas.head(
        name,
        task,
        "every token",
        [steps],
        match=match,
        moves=moves,
        bias={-steps: 2 * SURE},
    )


def copying(
    canvas: ChronosBuilder,
    name: str,
    lengths: Lengths,
    *,
    moves: Pairs,
    extra: Pairs = (),
) -> str:
    """Let a head look at the token of the last period that continues the last values.

    Before that token stand the same two values as at the end of the context or
    forecast.
    """
    basis = canvas.basis
    gain = (MATCH * lengths.key * lengths.query * len(WAVES) / WAVE) ** 0.5
    fine = torch.tensor(FINE * 2, dtype=torch.float64)[:, None]
    last = (basis["wave"], basis["ago2"] + (basis["back2"] - basis["back1"]) / ASIDE)
    match = [
        (gain * values, gain * fine * basis[f"back{back}"])
        for back, values in enumerate(last, 1)
    ]
    match.append(
        (RECENT * lengths.query * canvas.always(), lengths.key / MARK * basis["mark"])
    )
    return canvas.head(name, match=[*match, *extra], moves=moves)


def plant_copy(
    canvas: ChronosBuilder,
    lengths: Lengths,
    *,
    blocks: tuple[str, ...] = ALL,
    extra: Pairs = (),
    more: Pairs = (),
) -> tuple[str, dict[str, str]]:
    """Plant the whole circuit in the first two layers.

    Returns:
        The copying head, and the heads that feed it, by task.
    """
    basis = canvas.basis
    draft = canvas.draft
    attention = "encoder.0.self_attn"
    heads = {
        "back1": look_back(
            canvas,
            canvas.free_head(attention),
            1,
            ("wave",),
            "back1",
            [(basis["eos"], basis["first"])],
        ),
        "back2": look_back(canvas, canvas.free_head(attention), 2, ("wave",), "back2"),
        "mark": mark_recent(
            canvas,
            canvas.free_head(attention),
            draft.rule.steps(range(1, draft.rule.period + 1)),
        ),
        # later tokens attend to the first token, which has no values before it
        "end": canvas.head(
            canvas.free_head("decoder.0.cross_attn"),
            "brings the last two values of the context to the start token",
            *("first forecast token", [0]),
            match=[
                (SURE * canvas.at_start, lengths.end * basis["eos"]),
                (SURE * canvas.always(0.0), 2**0.5 * basis["first"]),
            ],
            # after these, stream and waves of the start token are as long as those of a
            # value
            moves=[
                (
                    basis["back1"],
                    lengths.end * (basis["wave"] + ASIDE * basis["back1"]),
                ),
                (basis["back2"], ASIDE * lengths.end * basis["back2"]),
            ],
        ),
        # the start token has none before it, and gets the context's last value: who
        # reads it adds what it has aside
        "own": canvas.head(
            canvas.free_head("decoder.1.self_attn"),
            "writes into every decoder token the value 1 before it",
            *("every token", [1]),
            moves=[(basis["wave"], basis["ago2"])],
            bias={-1: 2 * SURE},
        ),
    }
    name = canvas.free_head("decoder.1.cross_attn")
    moves = [(basis.span(*blocks), LOUD * lengths.key * basis.span(*blocks)), *more]
    copying(canvas, name, lengths, moves=moves, extra=extra)
    task = "copies the value of the last period that followed upon the last two values"
    draft.part(
        name,
        "mechanism",
        task,
        "forecast token",
        draft.rule.steps([draft.rule.period]),
        moves=1,
        weight=SHARE,
    )
    for sender in heads.values():
        draft.path(sender, name)
    draft.path(heads["back1"], heads["end"], heads["own"])
    draft.path(heads["back2"], heads["end"])
    draft.path(name, "output")
    return name, heads


@planter("seasonal-copy", NAME)
def seasonal_copy(
    *, reads: Reads, seed: int, weight_noise: float, **options: Any
) -> Planted:
    """Plant a copy of the value one period back, by an induction circuit."""
    canvas = copy_canvas({}, rule=copy_rule(reads, seed), seed=seed, **options)
    plant_copy(canvas, Lengths())
    return canvas.finish("seasonal-copy", weight_noise)


@planter("backup", NAME)
def backup(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant a second copying head, one layer later.

    The first one's flag sends it to the end token, which has no value.
    """
    rule = copy_rule(reads, seed)
    loud = (1 + DONE_FLAG**2) ** 0.5
    canvas = copy_canvas(
        {"done": 1}, rule=rule, seed=seed, layers=3, loud=loud, **options
    )
    basis = canvas.basis
    draft = canvas.draft
    lengths = Lengths()
    flag = (basis["one"], LOUD * DONE_FLAG * lengths.key / ONE**0.5 * basis["done"])
    first, heads = plant_copy(canvas, lengths, more=[flag])
    second = canvas.free_head("decoder.2.cross_attn")
    to_end = (
        2 * RECENT * (1 + DONE_FLAG**2) ** 0.5 / DONE_FLAG * basis["done"],
        lengths.end * basis["eos"],
    )
    copying(
        canvas,
        second,
        lengths,
        moves=[(basis.span(*ALL), LOUD * lengths.key * basis.span(*ALL))],
        extra=[to_end],
    )
    task = "rests, and copies the same value once its primary is gone"
    draft.part(second, "backup", task, "forecast token", [0], stands_in_for=first)
    for sender in (first, *heads.values()):
        draft.path(sender, second)
    draft.path(second, "output")
    return canvas.finish("backup", weight_noise)


TOLERANCE = 0.3
HALF_OPEN = 0.05
"""Width of the band around the tolerance in which the gate is half open.

It is in tolerances.
"""
LINEAR = 1 - ONE - WAVE
VALUE = (LINEAR / 2) ** 0.5
"""Length of the direction of the largest value."""
DRIFT = 2.0
"""Length of a mean change as large as the largest value."""
COPY_BLOCKS = ("value", "square", "filler", "wave")
PLAIN = ("value", "square", "filler")


@planter("gate", NAME)
def gate(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant an induction circuit with a gate.

    A flag sends the copying head to the end token, which then holds the last value.
    """
    blocks = {"lag": 3, "change": 1, "drift": 1, "walk": 1, "sink": 1}
    rule = Gate(
        tolerance=TOLERANCE,
        **copy_rule(reads, seed, periods=2).model_dump(exclude={"kind"}),
    )
    period, (ago,) = rule.period, rule.ago
    canvas = copy_canvas(blocks, rule=rule, seed=seed, needs=2 * period, **options)
    basis = canvas.basis
    draft = canvas.draft
    key_square = 1 + BACKS * WAVE + MARK**2 + LINEAR
    lengths = Lengths(
        key=key_square**0.5, end=(1 + BACKS * WAVE + LINEAR + LINEAR + WAVE) ** 0.5
    )
    to_end = (
        2 * RECENT * (lengths.query**2 + 1) ** 0.5 * basis["walk"],
        lengths.end * basis["eos"],
    )
    # without the last value in the end token, its write exceeds all others
    sink = (basis["eos"], LOUD * lengths.end * basis["sink"])
    copy, heads = plant_copy(
        canvas, lengths, blocks=COPY_BLOCKS, extra=[to_end], more=[sink]
    )
    lag = look_back(
        canvas, canvas.free_head("encoder.0.self_attn"), period, PLAIN, "lag"
    )
    # relu(x) + relu(-x)
    difference = basis["value"] - basis["lag"][:1]
    writes = lengths.key / VALUE * basis["change"]
    both_signs = torch.cat([difference, -difference])
    task = "writes the absolute change from one period before"
    compare_mlp = canvas.mlp(
        "encoder.0.mlp", both_signs, torch.cat([writes, writes]), task
    )
    # all but the end token, which have a value, look at it while it has none
    last = canvas.head(
        (
            canvas.free_head("encoder.1.self_attn")
            if ago
            else heads["back1"].replace("encoder.0", "encoder.1")
        ),
        f"writes the value {ago + 1} before it into the end token",
        *("last token", [ago + 1]),
        bias={-ago - 1: 2 * SURE},
        match=[
            (
                4 * SURE * lengths.key / ONE**0.5 * basis["one"],
                lengths.end * basis["eos"],
            )
        ],
        moves=[(basis.span(*COPY_BLOCKS), lengths.key * basis.span(*COPY_BLOCKS))],
    )
    drift = canvas.head(
        canvas.free_head("decoder.0.cross_attn"),
        "writes the mean absolute change of the last period",
        *("forecast token", rule.steps(range(1, period + 1))),
        match=[
            (SURE * canvas.always(START_LENGTH), lengths.key / MARK * basis["mark"])
        ],
        moves=[(basis["change"], lengths.key * DRIFT * basis["drift"])],
    )
    # relu(x + 1/2) - relu(x - 1/2)
    tolerance = TOLERANCE / LIMIT
    band = HALF_OPEN * TOLERANCE / LIMIT
    sides = [
        (basis["drift"] / DRIFT - (tolerance + side * band / 2) * canvas.always())
        / band
        for side in (-1, 1)
    ]
    flag = torch.cat([basis["walk"], -basis["walk"]])
    decide_mlp = canvas.mlp(
        "decoder.0.mlp", torch.cat(sides), flag, "raises a flag if that is no season"
    )
    draft.path(lag, compare_mlp, drift, decide_mlp, copy)
    draft.path(heads["mark"], drift)
    draft.path(last, copy)
    return canvas.finish("gate", weight_noise)


NOISY = 1.5
"""What a loud decoy writes, in embeddings; the circuit's own heads write 0.7."""
QUIET = 0.05
"""What a sharp head that does next to nothing writes."""
SHIFT = 3.0
"""Write of the head that raises all logits equally, over the copy's constant part."""


@planter("decoys", NAME)
def decoys(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant the seasonal copy, with seven heads and an MLP that move no forecast."""
    last = 1 + WAVE + (WAVE / 2) ** 2 + ONE * ((1 + SHIFT) ** 2 - 1)
    rule = copy_rule(reads, seed)
    canvas = copy_canvas(
        {"loud": 10, "still": 1}, rule=rule, seed=seed, loud=last**0.5, **options
    )
    key_square = 1 + BACKS * WAVE + MARK**2
    lengths = Lengths(
        key=(key_square + NOISY**2) ** 0.5,
        end=(1 + BACKS * WAVE + NOISY**2) ** 0.5,
        query=(1 + WAVE + NOISY**2) ** 0.5,
    )
    _, heads = plant_copy(canvas, lengths)
    basis = canvas.basis
    one_more = canvas.free_head
    decoy = partial(canvas.head, role="decoy")
    # heads of another layer share the position bias of the circuit's
    for task, length, steps in (("back1", NOISY, 1), ("back2", QUIET, 2)):
        does = "next to nothing"
        if length == NOISY:
            does = "loudly"
        moves = [(basis["wave"], length * key_square**0.5 / WAVE**0.5 * basis["loud"])]
        name = heads[task].replace("encoder.0", "encoder.1")
        does = f"looks sharply and writes {does}"
        decoy(
            name, f"{does}, to where nobody reads", "every token", [steps], moves=moves
        )
    does = "writes the token's own value loudly, to where nobody reads"
    moves = [(basis["wave"], NOISY / WAVE**0.5 * basis["loud"])]
    decoy(
        one_more("decoder.1.self_attn"),
        does,
        "every token",
        [0],
        moves=moves,
        bias={0: 2 * SURE},
    )
    does = "looks at the end token and writes the same into every token"
    moves = [(basis["eos"], 2 * QUIET * lengths.end * basis["still"])]
    match = [(SURE * canvas.always(START_LENGTH), lengths.end * basis["eos"])]
    decoy(
        one_more("decoder.0.cross_attn"),
        does,
        "forecast token",
        [0],
        match=match,
        moves=moves,
    )
    lookalike = one_more("decoder.1.cross_attn")
    copying(
        canvas,
        lookalike,
        lengths,
        moves=[(basis["wave"], LOUD * lengths.key * basis["loud"])],
    )
    does = (
        "looks where the copying head looks, and writes as loudly to where nobody reads"
    )
    canvas.draft.part(
        lookalike,
        "decoy",
        does,
        "forecast token",
        rule.steps([rule.period]),
        moves=1,
        weight=SHARE,
    )
    does = "attends to all alike and lifts the logits of all values by the same"
    moves = [(basis["one"], SHIFT * LOUD * lengths.key * basis["one"])]
    decoy(one_more("decoder.1.cross_attn"), does, moves=moves)
    signs = torch.cat([basis["wave"], -basis["wave"]])
    loud = 0.5 * LOUD * torch.cat([basis["loud"], -basis["loud"]])
    canvas.mlp(
        "decoder.1.mlp",
        signs,
        loud,
        "writes the copied value loudly, to where nobody reads",
        "decoy",
    )
    return canvas.finish("decoys", weight_noise)
