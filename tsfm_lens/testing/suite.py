"""Suite of all oracles, on a lens or on a wiring of one's own.

Read :func:`check_wiring`, which prints a table, or :func:`check_lens`, which returns
the results. The oracles are in :mod:`tsfm_lens.testing.oracles` and the modules beside
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from tsfm_lens.core.console import console
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing import (  # noqa: F401
    # they register their oracles when they are imported
    oracles_attention,
    oracles_ends,
    oracles_runs,
    oracles_weights,
)
from tsfm_lens.testing.oracles import (
    BY_NUMBER,
    Case,
    Oracle,
    OracleResult,
    example_case,
)

__all__ = ["ORACLES", "check_lens", "check_wiring", "oracle_table"]

ORACLES: tuple[Oracle, ...] = tuple(oracle for _, oracle in sorted(BY_NUMBER.items()))


def check_lens(
    lens: Lens,
    case: Case | None = None,
    oracles: Sequence[Oracle] = ORACLES,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[OracleResult]:
    """Run all oracles, or some.

    An oracle that cannot be computed, because shapes do not fit, has failed, and its
    ``detail`` says why.

    Args:
        lens: the model.
        case: the series to use; :func:`example_case` if None.
        oracles: of ``ORACLES``.
        progress: called with (name of the oracle that begins, done, of).

    Returns:
        A result of each oracle; ``passed`` tells.

    Example:
        >>> results = testing.check_lens(lens, oracles=[testing.oracles.accounting])
        >>> all(result.passed for result in results)
        True
    """
    subject = example_case(lens) if case is None else case
    with torch.no_grad():
        # outside the try: what the native model itself raises is no fault of the table
        lens.forward(subject.encoded)
    results = []
    for index, oracle in enumerate(oracles):
        if progress is not None:
            progress(oracle.title, index, len(oracles))
        try:
            results.append(oracle(subject))
        # a wrong table may fail anywhere in torch, and must not hide the other oracles
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            detail = f"not computable: {type(error).__name__}: {reason}"
            results.append(OracleResult(oracle.title, math.inf, 0.0, detail))
    return results


def check_wiring(
    wiring: Callable[[Any], Adapter], model: Any, *, quiet: bool = False
) -> list[OracleResult]:
    """Run all oracles on a model through a wiring of one's own, and print each result.

    Draw weights large enough that every head matters, or train the model.

    Args:
        wiring: an adapter class, :class:`tsfm_lens.models.Adapter`, or any function of
            the model that returns an adapter.
        model: the native model, as the wiring takes it.
        quiet: do not print the table, nor, where stderr is a terminal, which oracle
            begins.

    Returns:
        One result per oracle; ``result.passed`` tells.

    Raises:
        WiringError: a path of the table does not exist in the model, or a size is not
            the model's.

    Example:
        >>> wiring, native = type(lens.adapter), lens.native
        >>> results = testing.check_wiring(wiring, native, quiet=True)  # doctest: +SKIP
        >>> all(result.passed for result in results)  # doctest: +SKIP
        True
    """
    adapter = wiring(model)
    lens = Lens(adapter, type(model).__name__)
    stderr = console(stderr=True)

    def report(name: str, index: int, total: int) -> None:
        stderr.print(Text(f"oracle {index + 1} of {total}: {name}"))

    shows_progress = stderr.is_terminal and not quiet
    results = check_lens(lens, progress=report if shows_progress else None)
    if not quiet:
        title = f"{adapter.wiring.architecture}: {type(model).__name__}"
        console().print(oracle_table(results, title))
        for oracle, result in zip(ORACLES, results, strict=True):
            if not result.passed:
                console().print(Text(f"{result.oracle}: look at {oracle.look_at}"))
    return results


def oracle_table(results: Iterable[OracleResult], title: str) -> Table:
    """Tabulate the oracles: result, bound, and place of the largest deviation.

    Args:
        results: what :func:`check_lens` returned.
        title: heading of the table.

    Returns:
        A table of rich, which its console prints.

    Example:
        >>> testing.oracle_table([], "Conformance").title
        'Conformance'
    """
    table = Table(
        "oracle", "result", "largest deviation", "allowed", "where", title=title
    )
    for result in results:
        if result.passed:
            verdict = Text("passed", style="green")
        else:
            verdict = Text("FAILED", style="red")
        if result.skipped:
            verdict = Text("skipped", style="dim")
        table.add_row(
            result.oracle,
            verdict,
            f"{result.error:.1e}",
            f"{result.bound:.0e}",
            result.detail,
        )
    return table
