"""Token spans: the time steps that each token covers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenSpans:
    """Time steps of every token of one stack.

    Steps count from the forecast start: the last step of the context is -1, the first forecast step 0.
    A token covers ``[start, stop)``. Encoder tokens cover the steps of their input; decoder tokens cover
    the steps that are read out from them.

    Attributes:
        start, stop: one entry per token.
        special: "" for a token of the series, else its kind: "EOS", "REG". Special tokens have
            ``start == stop``.
        variate: of which variate a token is, where those of an item share one sequence; () elsewhere.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    special: tuple[str, ...]
    variate: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.start) == len(self.stop) == len(self.special):
            raise ValueError(
                f"start, stop and special must have one entry per token, "
                f"got {len(self.start)}, {len(self.stop)}, {len(self.special)}"
            )

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def patches(
        cls, first: int, n: int, width: int, special_after: tuple[str, ...] = (), *, stride: int | None = None
    ) -> TokenSpans:
        """Make ``n`` tokens of ``width`` steps each from step ``first`` on, then special tokens.

        Tokens begin ``stride`` steps apart, by default ``width``; with less they overlap.
        """
        start = [first + (stride or width) * index for index in range(n)]
        end = start[-1] + width if start else first
        return cls(
            tuple(start) + (end,) * len(special_after),
            tuple(s + width for s in start) + (end,) * len(special_after),
            ("",) * n + special_after,
        )

    def __add__(self, other: TokenSpans) -> TokenSpans:
        """Return the tokens of both, one after the other."""
        variate = self.variate + other.variate
        return TokenSpans(self.start + other.start, self.stop + other.stop, self.special + other.special, variate)

    def shifted(self, steps: int) -> TokenSpans:
        """Return the same tokens counted from a forecast start that lies ``steps`` earlier."""
        start, stop = (tuple(edge + steps for edge in edges) for edges in (self.start, self.stop))
        return TokenSpans(start, stop, self.special, self.variate)
