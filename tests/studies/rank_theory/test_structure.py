"""Errors of structured matrices of equal size: against dense ones, brute force and the modules of the lab."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from tsfm_lens.studies.rank_theory import structure
from tsfm_lens.studies.structured.contraction import nearest_tensor_train
from tsfm_lens.studies.structured.matrices import (
    BlockTensorTrain,
    LowRank,
    LowRankBlockDiagonal,
    MultiLevelLowRank,
    StructuredMatrix,
)
from tsfm_lens.testing import assert_close, rounding

# with a finest block of more than b rows, or a block tensor train would hold every block-diagonal matrix
SIDE, RANK = 32, 4
SIZES = structure.structure_sizes(SIDE, SIDE, RANK, levels=3)
OUT_FACTORS = (SIDE // SIZES.cuts, SIZES.cuts)
SWEEPS = 600


def levels_error(
    left: np.ndarray, right: np.ndarray, ranks: tuple[int, ...], sweeps: int
) -> np.ndarray:
    return structure.fit_levels(left, right, ranks, sweeps)[1]


FORMS: dict[str, tuple[StructuredMatrix, Callable[..., np.ndarray]]] = {
    "low rank": (
        LowRank(SIDE, SIDE, RANK),
        partial(structure.low_rank_error, rank=RANK),
    ),
    "block diagonal": (
        LowRankBlockDiagonal(SIDE, SIDE, SIZES.block_rank, SIZES.blocks),
        partial(
            structure.block_diagonal_error, blocks=SIZES.blocks, rank=SIZES.block_rank
        ),
    ),
    "multi-level": (
        MultiLevelLowRank(SIDE, SIDE, SIZES.level_ranks),
        partial(levels_error, ranks=SIZES.level_ranks, sweeps=SWEEPS),
    ),
    "tensor train": (
        BlockTensorTrain(SIDE, SIDE, SIZES.slice_rank, OUT_FACTORS, OUT_FACTORS[::-1]),
        partial(structure.tensor_train_error, cuts=SIZES.cuts, rank=SIZES.slice_rank),
    ),
}


def factors(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two factors of a matrix, neither of which has its shape or its bases."""
    mixing = np.random.default_rng(5).standard_normal((len(matrix[0]), len(matrix[0])))
    return matrix @ mixing, np.linalg.inv(mixing).T


def drawn(form: StructuredMatrix, seed: int) -> np.ndarray:
    """A random matrix of a family, in float64."""
    generator = torch.Generator().manual_seed(seed)
    form = form.double()
    with torch.no_grad():
        for parameter in form.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
        return form.dense().numpy()


@pytest.mark.parametrize("planted", list(FORMS))
@pytest.mark.parametrize("seed", range(3))
def test_a_matrix_of_a_family_has_no_error_at_its_size_in_it_and_one_in_all_others(
    planted: str, seed: int
) -> None:
    matrix = drawn(FORMS[planted][0], seed)
    exact = rounding("float64", 1.0, depth=100_000)
    for name, (_, error) in FORMS.items():
        fewer = {"sweeps": 40} if name == "multi-level" != planted else {}
        found = float(error(*factors(matrix), **fewer))
        assert found <= exact if name == planted else found > 0.05, (name, found)


def test_errors_are_those_of_the_dense_matrix_and_its_parts() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((3, 12, 5)), rng.standard_normal((3, 18, 5))
    dense = left @ right.transpose(0, 2, 1)
    assert_close(
        structure.low_rank_error(left, right, 2),
        [_cut_off(each, 2) for each in dense],
        depth=1000,
    )
    kept = np.zeros_like(dense)
    for block in range(3):
        rows, columns = slice(4 * block, 4 * block + 4), slice(6 * block, 6 * block + 6)
        kept[:, rows, columns] = [_best(each[rows, columns], 1) for each in dense]
    missing = np.linalg.norm(dense - kept, axis=(1, 2)) / np.linalg.norm(
        dense, axis=(1, 2)
    )
    assert_close(structure.block_diagonal_error(left, right, 3, 1), missing, depth=1000)
    shares = [
        sum(
            np.square(each[4 * k : 4 * k + 4, 6 * k : 6 * k + 6]).sum()
            for k in range(3)
        )
        for each in dense
    ]
    assert_close(
        structure.block_share(left, right, 3),
        shares / np.square(dense).sum((1, 2)),
        depth=1000,
    )


def test_the_tensor_train_error_is_that_of_the_nearest_one_of_the_lab() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal((12, 5)), rng.standard_normal((18, 5))
    dense = left @ right.T
    for cuts, rank in ((1, 2), (2, 1), (3, 2), (6, 1)):
        train = nearest_tensor_train(
            torch.from_numpy(dense), rank, (12 // cuts, cuts), (cuts, 18 // cuts)
        )
        missing = np.linalg.norm(
            dense - train.dense().detach().numpy()
        ) / np.linalg.norm(dense)
        assert_close(
            structure.tensor_train_error(left, right, cuts, rank), missing, depth=1000
        )


def test_fitted_levels_are_a_matrix_of_the_lab_with_the_error_that_is_told() -> None:
    rng = np.random.default_rng(2)
    left, right = rng.standard_normal((16, 9)), rng.standard_normal((24, 9))
    levels, error = structure.fit_levels(left, right, (2, 0, 1), sweeps=3)
    module = MultiLevelLowRank(16, 24, (2, 0, 1)).double()
    with torch.no_grad():
        for place, level in enumerate(levels):
            if level is not None:
                module.left[place].copy_(torch.from_numpy(level[0]))
                module.right[place].copy_(torch.from_numpy(level[1]))
    dense = left @ right.T
    missing = np.linalg.norm(dense - module.dense().detach().numpy()) / np.linalg.norm(
        dense
    )
    assert_close(error, missing, depth=1000)
    assert levels[1] is None


def test_more_sweeps_never_fit_worse() -> None:
    rng = np.random.default_rng(3)
    left, right = rng.standard_normal((4, 16, 6)), rng.standard_normal((4, 16, 6))
    errors = np.stack(
        [levels_error(left, right, (2, 1, 1), sweeps) for sweeps in (1, 2, 4, 8, 16)]
    )
    assert (np.diff(errors, axis=0) < rounding("float64", 1.0, depth=1000)).all()
    assert (errors[-1] < 0.99 * errors[0]).all()


def test_a_matrix_of_zeros_has_no_error() -> None:
    zero = np.zeros((2, 8, 3))
    zero[1] = np.random.default_rng(7).standard_normal((8, 3))
    for error in (
        structure.low_rank_error(zero, zero, 1),
        structure.block_diagonal_error(zero, zero, 2, 1),
        levels_error(zero, zero, (1, 1), 2),
        structure.tensor_train_error(zero, zero, 2, 1),
        structure.block_share(zero, zero, 2),
    ):
        assert np.isnan(error[0])
        assert error[1] > 0


def _best(matrix: np.ndarray, rank: int) -> np.ndarray:
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def _cut_off(matrix: np.ndarray, rank: int) -> float:
    return float(np.linalg.norm(matrix - _best(matrix, rank)) / np.linalg.norm(matrix))
