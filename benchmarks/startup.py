"""What help, lists and refusals of the command line cost, beside importing torch.

python -m benchmarks.startup [--rounds 5]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# a file of semicolons, decimal commas, thousands, German dates and a column of ids
MESSY = "\n".join(
    ["Tag;Laden;Verbrauch"]
    + [
        f"{day:02d}.01.2021;{shop};{day}.{day:03d},5"
        for shop in ("Nord", "West")
        for day in range(1, 29)
    ]
)
SWEEP = """\
models: [{source: bolt-nano, context_length: 100}]
data: [{source: bundled, names: [nile], horizon: 4, windows: 2}]
variants: {layers: {sizes: [1]}}
"""
SERIES = "--data bundled:nile --horizon 6"
COMMANDS = {
    "help": "-h",
    "help of a sweep": "sweep -h",
    "models": "models",
    "wrong model": f"forecast bolt-nan {SERIES}",
    "wrong hub id, not in the cache": f"forecast amazon/chronos-bolt-bas {SERIES}",
    "wrong file": "report bolt-nano --data lood.csv",
    "messy file, all faults": "explain bolt-nano --data messy.csv",
    "wrong column": "forecast bolt-nano --data messy.csv --targets Verbrach",
    "wrong measurement": f"report bolt-nano {SERIES} --sections forcast",
    "wrong figure": f"figure logit_mop bolt-nano {SERIES}",
    "wrong component": f"ablate bolt-nano {SERIES} --components decoder..mlp",
    "wrong method": f"explain bolt-nano {SERIES} --method shaply",
    "wrong training file": "train lood.yaml",
    "wrong sweep": "sweep lood.yaml",
    "status of a sweep that ran": "sweep status done.yaml",
    "plan of a sweep that ran": "sweep done.yaml --plan",
    "plan of a new sweep": "sweep new.yaml --plan",
}


def spent(command: list[str], folder: Path) -> float:
    """Processor time of a process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    program = [sys.executable, "-m", "tsfm_lens"]
    torch = [sys.executable, "-c", "import torch"]
    times: dict[str, list[float]] = {name: [] for name in ("import torch", *COMMANDS)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "messy.csv").write_text(MESSY, encoding="utf-8")
        for file in ("done.yaml", "new.yaml"):
            (folder / file).write_text(f"name: {file}\n{SWEEP}", encoding="utf-8")
        subprocess.run([*program, "sweep", "done.yaml"], cwd=folder, check=True)
        for _ in range(options.rounds):
            # all in turn, so that each round has the same load of the machine
            times["import torch"].append(spent(torch, folder))
            for label, words in COMMANDS.items():
                times[label].append(spent([*program, *words.split()], folder))
    unit = statistics.median(times["import torch"])
    print("| command | processor time, s | over `import torch` |\n|---|---|---|")
    for label, values in times.items():
        median = statistics.median(values)
        print(f"| {label} | {median:.2f} | {median / unit:.2f} |")


if __name__ == "__main__":
    main()
