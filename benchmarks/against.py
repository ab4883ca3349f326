"""What this tree costs over another commit: idle forecast, capture, ablations and
probes of the embedded models.

``git worktree add --detach PATH COMMIT``, then ``python -m benchmarks.against PATH``.
Both trees run in processes of their own, in turn. The columns are the smallest
processor time, its ratio and that of the medians to the other tree's, and the calls of
functions, which no other work on the machine moves.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
MODELS = ("bolt-nano", "chronos2-nano", "chronos-nano")
LENGTH = 128
HORIZON = 12
REPEATS = 5
SERVE = "--serve"
MARK = "costs: "


def works(name: str, count: int) -> dict[str, Callable[[], object]]:
    """What is timed of a model, each on a new run of ``count`` series; the two trees
    have it under the same names.
    """
    import torch

    import tsfm_lens
    from tsfm_lens import probes

    torch.set_num_threads(1)
    lens = tsfm_lens.load(name)
    rng = np.random.default_rng(0)
    steps = np.arange(LENGTH + HORIZON)
    series = [
        np.sin(2 * np.pi * steps / (12 + row)) + 0.1 * rng.standard_normal(len(steps))
        for row in range(count)
    ]
    tokens = lens.adapter.readout == "token"
    options: dict[str, Any] = {"num_samples": 4} if tokens else {}
    run = partial(lens.run, series, HORIZON, holdout=True, **options)
    contexts = [values[:LENGTH] for values in series]
    points = [
        point
        for point in lens.hook_dict
        if "hook_resid" in point or point.endswith("hook_z")
    ]
    encoded = lens.encode(
        contexts,
        future=np.stack([values[LENGTH:] for values in series]) if tokens else None,
    )
    return {
        "idle forecast": lambda: lens.forecast(contexts, HORIZON, **options),
        "run": lambda: run().forecast,
        "capture": lambda: lens.run_with_cache(encoded, names_filter=points),
        "recording of a run": lambda: run().record(points),
        "ablation sweep": lambda: probes.ablation_effects(run()),
        "attribution": lambda: probes.attribution(run()),
        "logit lens": lambda: probes.logit_lens(run()),
        "head entropy": lambda: probes.head_entropy(run()),
    }


def serve() -> None:
    """Answer each line of the input, a model, a number of series and whether to count
    calls, by a line of costs.
    """
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    ready: dict[tuple[str, int], dict[str, Callable[[], object]]] = {}
    for line in sys.stdin:
        name, count, profiled = json.loads(line)
        if (name, count) not in ready:
            ready[name, count] = works(name, count)
            for work in 3 * [*ready[name, count].values()]:
                work()
        cost = seconds
        if profiled:
            cost = calls
        costs = {title: cost(work) for title, work in ready[name, count].items()}
        print(MARK + json.dumps(costs), flush=True)


def seconds(work: Callable[[], object]) -> list[float]:
    """Processor time of ``REPEATS`` calls."""
    spent = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return spent


def calls(work: Callable[[], object]) -> list[float]:
    """Number of calls of functions within one call."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return [float(sum(entry.callcount for entry in profile.getstats()))]


class Tree:
    """A process that imports a tree."""

    def __init__(self, folder: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
        }
        command = [sys.executable, str(HERE), SERVE]
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, text=True, **pipes
        )

    def costs(self, name: str, count: int, profiled: bool) -> dict[str, list[float]]:
        """Costs of every work."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([name, count, profiled]), file=self.process.stdin, flush=True)
        answer = next(line for line in self.process.stdout if line.startswith(MARK))
        costs: dict[str, list[float]] = json.loads(answer.removeprefix(MARK))
        return costs


def main() -> None:
    """Measure both trees in turn and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description=__doc__
    )
    parser.add_argument("base", type=Path, help="folder of the other tree")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--series", default="1,8", help="series of a run")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    base = Tree(options.base.resolve())
    here = Tree(HERE.parents[1])
    print(
        "| model | series | work | smallest, ms | smallest / base | median / base |"
        " calls | calls / base |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, count in product(
        options.models.split(","), map(int, options.series.split(","))
    ):
        calls_here = here.costs(name, count, True)
        calls_base = base.costs(name, count, True)
        times: dict[Tree, dict[str, list[float]]] = {here: {}, base: {}}
        for turn in range(options.rounds):
            for tree in (here, base) if turn % 2 else (base, here):
                for title, spent in tree.costs(name, count, False).items():
                    times[tree].setdefault(title, []).extend(spent)
        for title, ours in times[here].items():
            theirs = times[base][title]
            smallest = min(ours) / min(theirs)
            median = np.median(ours) / np.median(theirs)
            (calls_ours,), (calls_theirs,) = calls_here[title], calls_base[title]
            cells = [
                name,
                str(count),
                title,
                f"{1000 * min(ours):.1f}",
                f"{smallest:.3f}",
                f"{median:.3f}",
            ]
            cells += [f"{calls_ours:.0f}", f"{calls_ours / calls_theirs:.3f}"]
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == [SERVE]:
        # the folder of this file would shadow modules of the tree that is measured
        sys.path.pop(0)
        serve()
    else:
        main()
