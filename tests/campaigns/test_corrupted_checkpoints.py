"""Whatever is done to a checkpoint, it is refused in our words, or loads as the file
has it, read by a slow reader.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from campaigns.spoiling import KINDS, MARK, save, tensors
from tiny_lenses import STORED
from tsfm_lens.core.errors import LensError
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.checkpoint import unwrap_module
from tsfm_lens.testing import tiny

SAMPLE = 6
PARTS = 50
PATIENCE = 300
"""Cases a kind in the default suite; parts of the campaign; seconds after which a load
counts as hanging.
"""
RENAMED = {".mlp.ff0.": ".mlp.fc1.", ".mlp.ff1.": ".mlp.fc2."}


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Raise in a load that hangs."""

    def ring(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"no answer after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A sound checkpoint of every architecture whose library is installed."""
    folders = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in STORED:
            entry = architectures()[name]
            if not entry.importable:
                continue
            native = load(tiny(name), check=False).native
            folders[name] = save(name, native, tmp_path_factory.mktemp(name), patch)
        yield folders


def differences(folder: Path, lens: Lens) -> list[str]:
    """What a loaded model holds that its files, read slowly, do not."""
    stored = tensors(folder / "model.safetensors")
    for old, new in RENAMED.items():
        stored = {name.replace(old, new): array for name, array in stored.items()}
    state = unwrap_module(lens.native).state_dict()
    reported = {state[name].data_ptr() for name in stored if name in state}
    found = [
        f"{name} is in no file"
        for name, item in state.items()
        if item.data_ptr() not in reported and item.numel()
    ]
    for name in set(stored) & set(state):
        loaded = state[name].numpy()
        wanted = stored[name].astype(loaded.dtype)
        # the library computes these, and a flipped last digit of them changes nothing
        # that it uses
        if "rotary_emb" in name:
            same = np.allclose
        else:
            same = np.array_equal
        if not same(loaded, wanted):
            found.append(f"{name} differs from the file")
        if not np.isfinite(loaded).all():
            found.append(f"{name} is not finite")
    return found


def attempt(
    folder: Path,
    spoil: Callable[[Path, np.random.Generator], None],
    rng: np.random.Generator,
) -> str:
    """ "refused", "loaded", or what went wrong."""
    spoil(folder, rng)
    try:
        with patience(PATIENCE):
            lens = load(folder, check="settings" in spoil.__name__)
        outcome = "; ".join(differences(folder, lens)[:3]) or "loaded"
    except LensError as error:
        outcome = "an error without a word"
        if str(error).strip():
            outcome = "refused"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"[:300]
    if (folder.parent / MARK).exists():
        return "a pickle was read"
    return outcome


def run(
    saved: dict[str, Path], room: Path, cases: range
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Counts by kind and outcome, and the failures with what repeats them."""
    counts: Counter[tuple[str, str]] = Counter()
    failures = []
    names = list(saved)
    for case in cases:
        rng = np.random.default_rng([1, case])
        spoil = KINDS[case % len(KINDS)]
        name = names[case // len(KINDS) % len(names)]
        position = room / "case"
        shutil.copytree(saved[name], position / name)
        outcome = attempt(position / name, spoil, rng)
        shutil.rmtree(position)
        good = outcome in ("refused", "loaded")
        counts[spoil.__name__, outcome if good else "FAILED"] += 1
        if not good:
            failures.append(f"case {case}, {spoil.__name__} of {name}: {outcome}")
    return counts, failures


def test_corrupt_checkpoints_refused_or_unchanged(
    saved: dict[str, Path], tmp_path: Path
) -> None:
    """Spoiled checkpoints are refused or load as they are."""
    counts, failures = run(saved, tmp_path, range(SAMPLE * len(KINDS)))
    assert not failures
    # what cannot be seen in the structure loads, so that the sample is not only
    # refusals
    assert counts["data_bits", "loaded"]
    assert counts["no_numbers", "refused"] == SAMPLE


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_spoiled_checkpoints(
    part: int,
    saved: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = int(os.environ.get("TSFM_LENS_CASES", "5000"))
    counts, failures = run(
        saved, tmp_path, range(part * cases // PARTS, (part + 1) * cases // PARTS)
    )
    with capsys.disabled():
        for (kind, outcome), number in sorted(counts.items()):
            sys.stdout.write(f"\n{kind}: {number} {outcome}")
    assert not failures, "\n".join(failures[:40])
