"""Planted induction circuit of Chronos.

The circuit looks for the last two values of the series in its last period, and copies
the value that followed upon them there. :func:`plant_copy` plants it; the functions
declared below plant it alone, with a backup, with a gate, or with decoys. The model is
built by :class:`~tsfm_lens.zoo.planted.chronos.ChronosBuilder`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Direction,
    Pairs,
    Steps,
)
from tsfm_lens.zoo.planted.draft import steps_ago
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import Gate, Reads, SeasonalCopy

BACKS = 2
"""Number of values before a token that are compared with the last ones.

`rules.shape` draws shapes in which two are enough and both are needed.
"""
WAVE = 0.5
"""Share of the waves in the squared length of a value's embedding, which is 1."""
MARK = 0.3
"""Length of the mark that tokens of the last period get."""
ASIDE = (0.5 * (1 - START_LENGTH**2 / WAVE)) ** 0.5
"""Factor on the context's last two values in `back1` and `back2` of the start token.

With it, the stream of the start token is as long as a value's.
"""
LOUD = 50.0
"""Length of what the copying head writes, in lengths of an embedding.

All else in the last stream is small against it.
"""
MATCH = 10.0
"""Attention score of one wave that agrees between two values."""
FINE = (1.0, 1.0, 1.0, 1.0, 0.0)
"""Weights of the waves in a comparison, from the longest to the shortest.

The shortest has none, since values that differ by noise alone would disagree in it.
"""
RECENT = 1.2 * 2 * MATCH * BACKS * sum(FINE)
"""Attention score of being in the last period.

It exceeds the difference between the best and the worst match, so that no earlier token
wins.
"""
DONE_FLAG = 0.5
"""Length of the flag for the backup, in lengths of what the copying head copies."""
SURE = 30.0
"""Difference of attention scores by which a head looks at one kind of token only."""
SHARE = 0.99
"""Attention of a copying head on the value one period back.

The rest is on similar values.
"""
BLOCKS = {"back1": 10, "back2": 10, "ago2": 10, "first": 1, "mark": 1}
"""Blocks of the stream, with their numbers of directions.

`back1` and `back2` hold the waves of the values before a token of the context, `ago2`
those of the value before a decoder token. `first` flags the first token, `mark` the
last period. In the decoder, the directions of `back` hold the values at the context's
end.
"""
ALONE = ((SURE / ONE**0.5, "one"), "eos")
"""Match by which a token looks at the end token, unless a bias outweighs it."""
ALL = ("one", "value", "square", "filler", "wave")
"""Blocks of a value's embedding."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of the streams of tokens, by which the norm before a head divides them.

    Attributes:
        key: of a token of the last period after the encoder: its embedding, the values
            before it, and the mark.
        end: of the end token after the encoder.
        query: of a decoder token: its embedding, and the value before it.
    """

    key: float = (1 + BACKS * WAVE + MARK**2) ** 0.5
    end: float = (1 + BACKS * WAVE) ** 0.5
    query: float = (1 + WAVE) ** 0.5


def copy_rule(reads: Reads, seed: int, periods: int = 1) -> SeasonalCopy:
    """Return a seasonal copy, whose period depends on the seed: 24 steps for seed 0.

    The mechanism reads ``periods`` periods, which must fit into the context.
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
    """Build a model in which no head has a task, and embeddings of values have waves.

    If a single value is copied, the forecast is about normal, with one bin as standard
    deviation. ``loud`` is the length of the last stream, in lengths of what is copied.

    Returns:
        The builder.
    """
    # the product of two embeddings at a small distance d is about 1 - bend * d² / 2
    bend = sum(WAVE / len(WAVES) * (2 * torch.pi / wave) ** 2 for wave in WAVES)
    settings = {
        "sharpness": loud * BIN**-2 / bend,
        "needs": rule.period + BACKS,
        **options,
    }
    return ChronosBuilder(
        rule, {**BLOCKS, **blocks}, waves=WAVE, horizon=rule.period, **settings
    )


def mark_recent(canvas: ChronosBuilder, steps: Steps, *, mark: str = "mark") -> str:
    """Let a head mark the tokens that have the end token ``steps`` tokens ahead."""
    nearest, farthest = steps[0], steps[-1]
    # the last value looks at the end token, one ahead, if it is marked
    looks = ("last value", [-1]) if nearest == 1 else ()
    return canvas.head(
        "encoder.0.self_attn",
        f"marks tokens that have the end token {nearest} to {farthest} tokens ahead",
        *looks,
        match=[ALONE],
        moves=[("eos", (MARK, mark))],
        # a token too near the end to have any token so far ahead looks at the one
        # before it, and so does the end token
        bias={-1: 1.5 * SURE, **dict.fromkeys(steps, 2 * SURE)},
    )


def attend_back(
    canvas: ChronosBuilder, steps: int, *moves: tuple[Direction, Direction]
) -> str:
    """Let a head write the value ``steps`` tokens before each token.

    It moves directions from there. Tokens with none so far before them look at
    the end token, which has no value.

    Returns:
        Name of the head.
    """
    return canvas.head(
        "encoder.0.self_attn",
        f"writes into every token the value {steps} before it",
        "every token",
        [steps],
        match=[ALONE],
        moves=moves,
        bias={-steps: 2 * SURE},
    )


def copying(
    canvas: ChronosBuilder,
    place: str,
    lengths: Lengths,
    *,
    moves: Pairs,
    extra: Pairs = (),
) -> str:
    """Let a head look at the token of the last period that continues the last values.

    The two values before that token are the last two of the context, or of the context
    and the forecast so far.

    Returns:
        Name of the head.
    """
    basis = canvas.basis
    # a wave that agrees has the product WAVE / len(WAVES), over both lengths by the
    # norms; its score is to be MATCH
    gain = (MATCH * lengths.key * lengths.query * len(WAVES) / WAVE) ** 0.5
    # cosines of all waves, then sines
    weights = torch.tensor(FINE * 2, dtype=torch.float64)[:, None]
    # of the start token, "ago2" and "back1" hold the last value, and cancel
    second_last = basis["ago2"] + (basis["back2"] - basis["back1"]) / ASIDE
    match: list[tuple[Direction, Direction]] = [
        (gain * values, gain * weights * basis[f"back{back}"])
        for back, values in enumerate((basis["wave"], second_last), 1)
    ]
    match.append(
        (RECENT * lengths.query * canvas.always(), (lengths.key / MARK, "mark"))
    )
    return canvas.head(place, match=[*match, *extra], moves=moves)


def copied(canvas: ChronosBuilder, blocks: Sequence[str], gain: float) -> Pairs:
    """Return pairs that move blocks as they are, times a gain."""
    return [(canvas.basis.span(*blocks), gain * canvas.basis.span(*blocks))]


def follows(rule: Any) -> dict[str, Any]:
    """Return where a copying head looks, by the fields of its card."""
    back = rule.steps([rule.period])
    return {"query": "forecast token", "back": back, "moves": 1, "weight": SHARE}


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
        The copying head, and the heads that feed it: "back1", "back2", "mark", "end"
        and "own".
    """
    basis = canvas.basis
    draft = canvas.draft
    heads = {
        "back1": attend_back(canvas, 1, ("wave", "back1"), ("eos", "first")),
        "back2": attend_back(canvas, 2, ("wave", "back2")),
        "mark": mark_recent(
            canvas,
            draft.rule.steps(range(1, draft.rule.period + 1)),
        ),
        # later decoder tokens attend to the context's first token: no values are before
        # it, so that nothing is written into them
        "end": canvas.head(
            "decoder.0.cross_attn",
            "brings the last two values of the context to the start token",
            "first forecast token",
            [0],
            match=[
                (SURE * canvas.at_start, (lengths.end, "eos")),
                (SURE * canvas.always(0.0), (2**0.5, "first")),
            ],
            # with these, the stream of the start token is as long as that of a value,
            # and so are its waves
            moves=[
                ("back1", lengths.end * (basis["wave"] + ASIDE * basis["back1"])),
                ("back2", (ASIDE * lengths.end, "back2")),
            ],
        ),
        # the start token has none before it and reads itself, the context's last value,
        # which a copying head replaces by the one before
        "own": canvas.head(
            "decoder.1.self_attn",
            "writes into every decoder token the value 1 before it",
            "every token",
            [1],
            moves=[("wave", "ago2")],
            bias={-1: 2 * SURE},
        ),
    }
    name = copying(
        canvas,
        "decoder.1.cross_attn",
        lengths,
        moves=[*copied(canvas, blocks, LOUD * lengths.key), *more],
        extra=extra,
    )
    task = "copies the value of the last period that followed upon the last two values"
    draft.part(name, "mechanism", task, **follows(draft.rule))
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

    A flag of the first one sends the second to the end token, which has no value.

    Returns:
        The planted model.
    """
    rule = copy_rule(reads, seed)
    # of the copied value and the flag
    last_length = (1 + DONE_FLAG**2) ** 0.5
    canvas = copy_canvas(
        {"done": 1}, rule=rule, seed=seed, layers=3, loud=last_length, **options
    )
    draft = canvas.draft
    lengths = Lengths()
    flag: Pairs = [("one", (LOUD * DONE_FLAG * lengths.key / ONE**0.5, "done"))]
    first, heads = plant_copy(canvas, lengths, more=flag)
    # with the flag, the score of the end token is 2 * RECENT
    to_end: Pairs = [
        ((2 * RECENT * last_length / DONE_FLAG, "done"), (lengths.end, "eos"))
    ]
    second = copying(
        canvas,
        "decoder.2.cross_attn",
        lengths,
        moves=copied(canvas, ALL, LOUD * lengths.key),
        extra=to_end,
    )
    task = "rests, and copies the same value once its primary is gone"
    draft.part(second, "backup", task, "forecast token", [0], stands_in_for=first)
    for sender in (first, *heads.values()):
        draft.path(sender, second)
    draft.path(second, "output")
    return canvas.finish("backup", weight_noise)


TOLERANCE = 0.3
"""Tolerance of the gate's rule, in mean absolute values."""
HALF_OPEN = 0.05
"""Width of the band around the tolerance in which the gate is half open.

It is a share of the tolerance.
"""
LINEAR = 1 - ONE - WAVE
"""Share of the blocks `PLAIN` in the squared length of a value's embedding."""
VALUE = (LINEAR / 2) ** 0.5
"""Length of the largest value's embedding along "value"."""
DRIFT = 2.0
"""Length along "drift" of a mean change as large as the largest value."""
COPY_BLOCKS = ("value", "square", "filler", "wave")
"""Blocks that tell values apart, which the gate's heads copy."""
PLAIN = ("value", "square", "filler")
"""`COPY_BLOCKS` without the waves."""


@planter("gate", NAME)
def gate(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant an induction circuit with a gate.

    Where the last two periods disagree, a flag sends the copying head to the end token,
    into which a head of the encoder has written the last value.

    Returns:
        The planted model.
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
    # LINEAR is in both for the value one period before; the end token holds the last
    # value besides, of square LINEAR + WAVE
    end_square = 1 + BACKS * WAVE + LINEAR + LINEAR + WAVE
    lengths = Lengths(key=key_square**0.5, end=end_square**0.5)
    # with the flag, of length 1, the score of the end token is 2 * RECENT
    to_end: Pairs = [
        ((2 * RECENT * (lengths.query**2 + 1) ** 0.5, "walk"), (lengths.end, "eos"))
    ]
    # if the end token lacks the last value (in an ablated model), this is larger than
    # all else in the last stream
    sink: Pairs = [("eos", (LOUD * lengths.end, "sink"))]
    copy, heads = plant_copy(
        canvas, lengths, blocks=COPY_BLOCKS, extra=to_end, more=sink
    )
    lag = attend_back(canvas, period, (basis.span(*PLAIN), "lag"))
    # the absolute value is relu(x) + relu(-x)
    difference = basis["value"] - basis["lag"][:1]
    writes = (lengths.key / VALUE, "change")
    compare_mlp = canvas.mlp(
        "encoder.0.mlp",
        [difference, -difference],
        [writes, writes],
        "writes the absolute change from one period before",
    )
    # heads of the same number share their position bias, in which back1 looks 1 back
    last_head = "encoder.1.self_attn"
    if not ago:
        last_head = heads["back1"].replace("encoder.0", "encoder.1")
    last = canvas.head(
        last_head,
        f"writes the value {ago + 1} before it into the end token",
        "last token",
        [ago + 1],
        bias={-ago - 1: 2 * SURE},
        # all other tokens look at the end token, which has no value yet, so that the
        # head writes nothing into them
        match=[((4 * SURE * lengths.key / ONE**0.5, "one"), (lengths.end, "eos"))],
        moves=copied(canvas, COPY_BLOCKS, lengths.key),
    )
    drift = canvas.head(
        "decoder.0.cross_attn",
        "writes the mean absolute change of the last period",
        "forecast token",
        rule.steps(range(1, period + 1)),
        match=[
            (SURE * canvas.always(START_LENGTH), (lengths.key / MARK, "mark")),
        ],
        moves=[("change", (lengths.key * DRIFT, "drift"))],
    )
    # with x in bands from the tolerance, relu(x + 1/2) - relu(x - 1/2) goes from 0 to 1
    tolerance = TOLERANCE / LIMIT
    band = HALF_OPEN * TOLERANCE / LIMIT
    sides = [
        (basis["drift"] / DRIFT - (tolerance + side * band / 2) * canvas.always())
        / band
        for side in (-1, 1)
    ]
    decide_mlp = canvas.mlp(
        "decoder.0.mlp",
        sides,
        ["walk", (-1.0, "walk")],
        "raises a flag if that is no season",
    )
    draft.path(lag, compare_mlp, drift, decide_mlp, copy)
    draft.path(heads["mark"], drift)
    draft.path(last, copy)
    return canvas.finish("gate", weight_noise)


NOISY = 1.5
"""Length of what a loud decoy writes, in lengths of an embedding.

The heads that feed the copying head write 0.7.
"""
QUIET = 0.05
"""Length of what a sharp head that does next to nothing writes."""
SHIFT = 3.0
"""What the head that raises all logits equally writes along "one".

It is in multiples of what the copying head writes there.
"""


@planter("decoys", NAME)
def decoys(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant the seasonal copy, with seven heads and an MLP that move no forecast."""
    # squared length of the last stream, to which decoys write besides the copying head
    last_square = 1 + WAVE + (WAVE / 2) ** 2 + ONE * ((1 + SHIFT) ** 2 - 1)
    rule = copy_rule(reads, seed)
    canvas = copy_canvas(
        {"loud": 10, "still": 1}, rule=rule, seed=seed, loud=last_square**0.5, **options
    )
    key_square = 1 + BACKS * WAVE + MARK**2
    lengths = Lengths(
        key=(key_square + NOISY**2) ** 0.5,
        end=(1 + BACKS * WAVE + NOISY**2) ** 0.5,
        query=(1 + WAVE + NOISY**2) ** 0.5,
    )
    _, heads = plant_copy(canvas, lengths)
    wave = WAVE**0.5
    decoy = partial(canvas.head, role="decoy")
    # in layer 1, heads with the numbers of the circuit's share their position bias
    for task, length, amount, steps in (
        ("back1", NOISY, "loudly", 1),
        ("back2", QUIET, "next to nothing", 2),
    ):
        decoy(
            heads[task].replace("encoder.0", "encoder.1"),
            f"looks sharply and writes {amount}, to where nobody reads",
            "every token",
            [steps],
            moves=[("wave", (length * key_square**0.5 / wave, "loud"))],
        )
    decoy(
        "decoder.1.self_attn",
        "writes the token's own value loudly, to where nobody reads",
        "every token",
        [0],
        moves=[("wave", (NOISY / wave, "loud"))],
        # the bias of a distance is shared by the layers, in which this number has no
        # other task
        bias={0: 2 * SURE},
    )
    decoy(
        "decoder.0.cross_attn",
        "looks at the end token and writes the same into every token",
        "forecast token",
        [0],
        match=[(SURE * canvas.always(START_LENGTH), (lengths.end, "eos"))],
        moves=[("eos", (2 * QUIET * lengths.end, "still"))],
    )
    lookalike = copying(
        canvas,
        "decoder.1.cross_attn",
        lengths,
        moves=[("wave", (LOUD * lengths.key, "loud"))],
    )
    task = (
        "looks where the copying head looks, and writes as loudly to where nobody reads"
    )
    canvas.draft.part(lookalike, "decoy", task, **follows(rule))
    decoy(
        "decoder.1.cross_attn",
        "attends to all alike and lifts the logits of all values by the same",
        # the same along "one" raises all values by the same, which a softmax does not
        # see
        moves=[("one", (SHIFT * LOUD * lengths.key, "one"))],
    )
    # relu(x) - relu(-x) is x
    canvas.mlp(
        "decoder.1.mlp",
        ["wave", (-1.0, "wave")],
        [(0.5 * LOUD, "loud"), (-0.5 * LOUD, "loud")],
        "writes the copied value loudly, to where nobody reads",
        "decoy",
    )
    return canvas.finish("decoys", weight_noise)
