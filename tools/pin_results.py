"""Pin what the package computes, so that a refactoring can be held against it.

``python tools/pin_results.py write PINS.json`` stores digests of every result, of the
data of every figure and of every sentence on the three embedded models, of the results
that are shipped or drawn in examples, and the keys of the ``--json`` of commands.
``python tools/pin_results.py compare PINS.json`` computes them again and prints what
differs. Pins hold on one machine with one number of threads: digests are of bytes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

SERIES = ["--data", "bundled:nile"]
COMMANDS = {
    "forecast": ["bolt-nano", *SERIES],
    "ablate": ["bolt-nano", *SERIES, "--components", "decoder.0.*"],
    "attribute": ["bolt-nano", *SERIES],
    "models": [],
    "measurements": [],
    "data": [],
    "hooks": ["bolt-nano"],
}


def digest(array: Any) -> str:
    """Compute a short hash of an array's shape and bytes, of text for objects."""
    array = np.asarray(array)
    if array.dtype.kind in "biufcmM":
        text = array.tobytes()
    else:
        text = json.dumps(array.tolist(), default=str).encode()
    return hashlib.sha256(f"{array.shape}".encode() + text).hexdigest()[:16]


def dataset_pins(ds: xr.Dataset) -> dict[str, str]:
    """Return the digest of each variable and coordinate by "name(dims)"."""
    return {
        f"{name}({', '.join(map(str, ds[name].dims))})": digest(ds[name].values)
        for name in map(str, ds.variables)
    }


def figure_pin(figure: go.Figure) -> str:
    """Return the digest of a figure's traces, layout apart."""
    return digest(
        np.array(json.dumps(json.loads(figure.to_json())["data"], sort_keys=True))
    )


def mask_values(value: Any) -> Any:
    """Return a JSON value with types in place of numbers and texts; a list by its first
    item.
    """
    if isinstance(value, dict):
        return {key: mask_values(part) for key, part in value.items()}
    if isinstance(value, list):
        if value:
            return [mask_values(value[0])]
        return []
    return type(value).__name__


def pins_of_source(source: str) -> dict[str, Any]:
    """Compute the pins of every result of one model, or of the results that no run
    makes.
    """
    from specimens import draw_all, find_kind, specimens
    from tsfm_lens.core.registry import find

    results = specimens(source)
    pins: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for name, result in results.items():
        # results of no run are numbered, which depends on what stands before them
        if " " in name:
            key = f"{source}/{find_kind(name)} {seen[find_kind(name)]}"
        else:
            key = f"{source}/{name}"
        seen[find_kind(name)] += 1
        if isinstance(result, xr.Dataset):
            pins[f"{key}/arrays"] = dataset_pins(result)
        pins[f"{key}/figures"] = {
            figure: figure_pin(drawn)
            for figure, drawn in draw_all(name, result, results)
        }
        panels = find(find_kind(name)).draw_panels(result)
        pins[f"{key}/sentences"] = [
            text for panel in panels for text in panel.sentences
        ]
    return pins


def pins_of_command(name: str) -> Any:
    """Run a command with ``--json`` and return the keys of what it prints."""
    line = [sys.executable, "-m", "tsfm_lens", name, *COMMANDS[name], "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    return mask_values(json.loads(done.stdout))


def pins() -> dict[str, Any]:
    """Compute all pins."""
    from specimens import SOURCES

    out: dict[str, Any] = {
        f"command/{name}": pins_of_command(name) for name in COMMANDS
    }
    for source in SOURCES:
        print(source, file=sys.stderr)
        out |= pins_of_source(source)
    return out


def main(action: str, path: str) -> int:
    """Write the pins, or compare them with those of a file; return the exit code."""
    computed = json.loads(json.dumps(pins()))
    if action == "write":
        Path(path).write_text(json.dumps(computed, indent=1, sort_keys=True))
        return 0
    stored = json.loads(Path(path).read_text())
    different = [
        key
        for key in sorted({*stored, *computed})
        if stored.get(key) != computed.get(key)
    ]
    for key in different:
        before = stored.get(key)
        after = computed.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            parts = [
                part
                for part in sorted({*before, *after})
                if before.get(part) != after.get(part)
            ]
            print(f"{key}: {', '.join(parts)}")
        else:
            print(f"{key}: {str(before)[:300]} -> {str(after)[:300]}")
    print(f"{len(different)} of {len(stored)} pins differ", file=sys.stderr)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
