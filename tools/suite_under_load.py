"""The suite three times while busy processes take the processor away: other kernels,
another number of threads.

``make test-hard`` runs all three, ``make test-hard HARD=avx2 TESTS=tests/hooks`` one of
them on a part of the suite. What fails here and passes alone is a tolerance that is no
bound, or a test of the clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONDITIONS = {
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    # threads that wait must sleep: there are more of them than cores
    "threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
}
# ends by itself when the process that started it has died
BUSY = (
    "import os; parent = os.getppid()\nwhile os.getppid() == parent:"
    " sum(range(100_000))"
)


@dataclass(frozen=True)
class Run:
    """One pass through the suite: what it ran under, how it ended, its minutes and
    pytest's last line.
    """

    condition: str
    status: int
    minutes: float
    last: str


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep ``count`` processes computing while the block runs, and stop them whatever
    happens in it.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            processes.append(subprocess.Popen([sys.executable, "-c", BUSY]))
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def run(condition: str, arguments: Sequence[str], workers: int) -> Run:
    """Run pytest under one of :data:`CONDITIONS`, print what it prints, and tell how it
    ended.
    """
    command = [sys.executable, "-m", "pytest", "-n", str(workers), *arguments]
    environment = {**os.environ, **CONDITIONS[condition]}
    began = time.monotonic()
    last = "no output"
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip().strip("=").strip() or last
        except BaseException:
            process.terminate()
            raise
    return Run(condition, process.returncode, (time.monotonic() - began) / 60, last)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the conditions asked for and print one line each; 0 if all passed, else 1."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--" in given:
        trimmed = given.index("--")
    else:
        trimmed = len(given)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "conditions",
        nargs="*",
        help=f"of {', '.join(CONDITIONS)}; all if none is named",
    )
    parser.add_argument(
        "--busy", type=int, default=4, help="processes that take the processor away (4)"
    )
    parser.add_argument("--workers", type=int, default=2, help="of pytest (2)")
    options = parser.parse_args(given[:trimmed])
    unknown = sorted(set(options.conditions) - set(CONDITIONS))
    if unknown:
        parser.error(
            f"unknown condition {unknown[0]!r}: expected {', '.join(CONDITIONS)}"
        )
    runs: list[Run] = []
    with busy(options.busy), suppress(KeyboardInterrupt):
        for condition in options.conditions or CONDITIONS:
            runs.append(run(condition, given[trimmed + 1 :], options.workers))
    print(f"\n{'condition':<10} {'result':<7} {'minutes':>7}  pytest")
    for one in runs:
        print(
            f"{one.condition:<10} {'FAILED' if one.status else 'passed':<7}"
            f" {one.minutes:>7.1f}  {one.last}"
        )
    asked = len(options.conditions or CONDITIONS)
    return int(len(runs) < asked or any(one.status for one in runs))


if __name__ == "__main__":
    sys.exit(main())
