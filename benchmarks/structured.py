"""``python -m benchmarks.structured``: attention with scores by levels of tokens against dense attention, by length.

Each length in one process, one thread: dense attention by torch's fused kernel, dense attention with the whole pattern
(``plain``), and our tiles with one level and with the paper's rank lists, in turn; ratios are to the fused kernel of
the same round, in time of the processor. Beside them: multiply-adds of scores and values together over those of dense
attention, forward and backward, as the formulas give them, and memory that a forward and backward takes at its peak,
each in a process of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.apart import apart, restart_peak, status
from tsfm_lens.models.timing import ratios
from tsfm_lens.studies.structured.counts import level_attention_operations
from tsfm_lens.studies.structured.forms import token_blocks
from tsfm_lens.studies.structured.tiles import Reach, reaching_attention

HEADS, SIZE = 8, 64
RANKS = {
    "one level": (64,),
    "8|8|8|8|8|8|8|8": (8,) * 8,
    "32|8|6|4|4|4|4|2": (32, 8, 6, 4, 4, 4, 4, 2),
    "40|16|4|4": (40, 16, 4, 4),
}
LENGTHS = (512, 1024, 2048, 4096, 8192)


def work_of(
    name: str, tokens: int, causal: bool
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention of queries, keys and values (1, head, token, feature)."""
    if name == "fused":
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if name == "plain":
        ahead = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)

        def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = q @ k.mT * SIZE**-0.5
            return (
                torch.softmax(
                    scores.masked_fill(ahead, float("-inf")) if causal else scores, -1
                )
                @ v
            )

        return plain
    ranks = RANKS[name]
    reach = Reach(ranks, token_blocks(tokens, len(ranks)), causal, scale=SIZE**-0.5)
    return lambda q, k, v: reaching_attention(q, k, v, reach)


def inputs(tokens: int) -> list[Tensor]:
    """Queries, keys and values, drawn."""
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, tokens, SIZE, requires_grad=True) for _ in range(3)]


def passes(
    name: str, tokens: int, causal: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward, and a forward with its backward."""
    given, work = inputs(tokens), work_of(name, tokens, causal)
    ahead = torch.randn(1, HEADS, tokens, SIZE)

    def forward() -> object:
        with torch.no_grad():
            return work(*given)

    return forward, lambda: torch.autograd.grad(work(*given), given, ahead)


def peak(name: str, tokens: int, causal: bool) -> int:
    """Bytes by which resident memory rises at most in a forward and backward of this process."""
    passes(name, 256, causal)[1]()
    _, both = passes(name, tokens, causal)
    before = restart_peak()
    both()
    return max(0, status("VmHWM") - before)


def operations(name: str, tokens: int) -> tuple[float, float]:
    """Multiply-adds over those of dense attention: forward, and forward with backward.

    Forward forms scores and sums values. Backward forms scores again, and does as much for queries, keys, and twice
    for values.
    """
    share = 1.0
    if name in RANKS:
        share = float(
            level_attention_operations(tokens, RANKS[name]) / (tokens**2 * SIZE)
        )
    return (share + 1) / 2, (4 * share + 3) / 7


def rows_of(
    tokens: int, causal: bool, rounds: int, memory: bool, wanted: list[str]
) -> list[list[str]]:
    """Rows: length, what, forward ratio, its operations, forward and backward ratio, its operations, memory."""
    names = [name for name in ("plain", *RANKS) if name in wanted]
    pairs = {name: passes(name, tokens, causal) for name in ("fused", *names)}
    timed = [
        ratios(
            [pairs[name][which] for name in names],
            pairs["fused"][which],
            rounds=rounds,
            clock=time.process_time,
        )
        for which in (0, 1)
    ]
    held = {
        name: int(apart(peak, name, tokens, causal)) if memory else None
        for name in ("fused", *names)
    }
    rows = [[str(tokens), "fused", "1", "1", "1", "1", _mib(held["fused"])]]
    for index, name in enumerate(names):
        allowed = operations(name, tokens)
        shown = [str(tokens), name]
        for which in (0, 1):
            median, low, high = timed[which][index]
            shown += [f"{median:.2f} ({low:.2f}-{high:.2f})", f"{allowed[which]:.2f}"]
        rows.append([*shown, _mib(held[name])])
        Console(stderr=True).print(rows[-1])
    return rows


def _mib(held: int | None) -> str:
    return "" if held is None else f"{held / 2**20:,.0f} MiB"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--names", default=",".join(("plain", *RANKS)), help="beside the fused kernel"
    )
    parser.add_argument(
        "--full", action="store_true", help="every token sees every other; else causal"
    )
    parser.add_argument("--no-memory", action="store_true", help="times alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    header = [
        "tokens",
        "attention",
        "forward",
        "operations",
        "and backward",
        "operations",
        "peak memory",
    ]
    table = Table(
        *header,
        title=f"{HEADS} heads of {SIZE}, {'all keys' if given.full else 'causal'}; ratios to fused",
    )
    for tokens in map(int, given.lengths.split(",")):
        for row in rows_of(
            tokens,
            not given.full,
            given.rounds,
            not given.no_memory,
            given.names.split(","),
        ):
            table.add_row(*row)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
