"""How much memory a run may have: arguments, the environment variable, control groups, and runs that are stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tsfm_lens.errors import InputError
from tsfm_lens.models.memory import VARIABLE, OverLimit, as_bytes, free_bytes, group_allowances, limit_of, measured

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2000", 2000),
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("500k", 500_000),
        ("7 mib", 7 * 2**20),
        ("1T", 10**12),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert as_bytes(text, "memory") == size


@pytest.mark.parametrize("wrong", ["", "lots", "-1", "0", "1e9", "2 XB", "GB", 0, -5, True, 1.5, "9" * 30])
def test_what_is_no_size_is_refused(wrong: object) -> None:
    with pytest.raises(InputError, match=r"expected a number of bytes"):
        as_bytes(wrong, "memory")  # type: ignore[arg-type]


def test_the_argument_goes_before_the_variable_and_that_before_the_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("tsfm_lens.models.memory.free_bytes", lambda _device: 1000)
    assert limit_of(None, CPU) == 500
    monkeypatch.setenv(VARIABLE, "3kB")
    assert limit_of(None, CPU) == 3000
    assert limit_of("1MiB", CPU) == 2**20
    monkeypatch.setenv(VARIABLE, "half")
    with pytest.raises(InputError, match=rf"{VARIABLE} is 'half'"):
        limit_of(None, CPU)


def group(root: Path, path: str, files: dict[str, str]) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_control_groups_bound_what_is_free(tmp_path: Path) -> None:
    assert list(group_allowances(tmp_path)) == []
    group(tmp_path, "proc/self", {"cgroup": "0::/job/step\n"})
    # the inner group has no limit, the one around it has; pages that can be given back are free
    free = {"memory.max": "max\n", "memory.current": "50\n", "memory.stat": "inactive_file 5\n"}
    group(tmp_path, "sys/fs/cgroup/job/step", free)
    bound = {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 3\ninactive_file 100\n"}
    group(tmp_path, "sys/fs/cgroup/job", bound)
    assert list(group_allowances(tmp_path)) == [400]


def test_groups_of_the_first_version_are_read(tmp_path: Path) -> None:
    group(tmp_path, "proc/self", {"cgroup": "9:cpu:/x\n4:memory:/inside/a/container\n0::/\n"})
    own = {
        "memory.limit_in_bytes": "500\n",
        "memory.usage_in_bytes": "600\n",
        "memory.stat": "inactive_file 9\ntotal_inactive_file 20\n",
    }
    group(tmp_path, "sys/fs/cgroup/memory", own)
    assert list(group_allowances(tmp_path)) == [0]


def test_what_is_free_is_a_size() -> None:
    assert 0 < free_bytes(CPU) < 2**60


def test_a_measured_run_is_stopped_at_its_limit() -> None:
    made = []

    def work() -> None:
        kept = []
        for _ in range(10):
            kept.append(torch.zeros(1000))
            made.append(len(kept))

    with pytest.raises(OverLimit):
        measured(work, CPU, limit=12_000)
    assert made == [1, 2, 3]
