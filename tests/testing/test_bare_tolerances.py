"""No tolerance of the tests is a number without a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TOLERANCES = {"atol", "rtol", "abs", "rel"}
# not comparisons: the accuracy asked of an integrator
ALLOWED = {("data/test_dysts.py", "make_trajectory")}


def bare(source: str) -> Iterator[tuple[int, str]]:
    """Line and function of every tolerance that is a literal other than 0, or is made
    with a small one.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func).split(".")[-1]
        for keyword in node.keywords:
            if keyword.arg in TOLERANCES and _is_bare(keyword.value):
                yield node.lineno, function
        # the tolerances that torch falls back to are literals of another file
        if (
            ast.unparse(node.func) == "torch.testing.assert_close"
            and not {k.arg for k in node.keywords} & TOLERANCES
        ):
            yield node.lineno, function


def _is_bare(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value != 0
    numbers = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return any(isinstance(number, float) and 0 < number < 0.01 for number in numbers)


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS))
)
def test_tolerances_say_where_they_come_from(path: Path) -> None:
    name = str(path.relative_to(TESTS))
    found = [
        (line, function)
        for line, function in bare(path.read_text())
        if (name, function) not in ALLOWED
    ]
    assert not found, (
        f"{name}: use assert_close, rounding or last_digit of"
        f" tsfm_lens.testing: {found}"
    )


BARE = """assert_allclose(a, b, atol=1e-6)
assert a == approx(b, rel=0.05)
assert_allclose(a, b, rtol=1e-5 * size)
torch.testing.assert_close(a, b)"""
REASONED = """assert_allclose(a, b, atol=0)
torch.testing.assert_close(a, b, rtol=0, atol=0)
assert a == approx(b, abs=last_digit(2))
assert a == approx(b, abs=5 * (0.25 * 0.75 / n) ** 0.5)
assert_allclose(a, b, atol=rounding('float32', size, depth=9))"""


def test_what_counts_as_bare() -> None:
    assert sorted(line for line, _ in bare(BARE)) == [1, 2, 3, 4]
    assert not list(bare(REASONED))
