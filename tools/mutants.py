"""Plant faults in a copy of the package, one at a time, and see whether the tests that
should notice do.

``python tools/mutants.py`` (``make mutants``) prints a line for each of :data:`MUTANTS`
and ends with an error if a fault passes. ``python tools/mutants.py hooks probes``
plants those of some packages.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A fault of one line: the file of the package, what it says, what it shall say,
    and the tests that must fail.
    """

    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    Mutant(*row)
    for row in (
        (
            "hooks/interventions.py",
            "return value + self.scale * rms * draw",
            "return value + rms * draw",
            "hooks/test_interventions.py",
        ),
        (
            "hooks/interventions.py",
            "return value + self.scale * self.vector.to(value)",
            "return value - self.scale * self.vector.to(value)",
            "hooks/test_interventions.py",
        ),
        (
            "hooks/interventions.py",
            "total[positions] += call.value.sum(dim=0)",
            "total[positions] = call.value.sum(dim=0) + 1",
            "hooks/test_interventions.py",
        ),
        (
            "hooks/interventions.py",
            "rows if isinstance(rows, slice) else torch.as_tensor(rows)",
            "slice(None)",
            "hooks/test_resampling.py::test_chosen_rows_draw_like_all_rows",
        ),
        (
            "hooks/component.py",
            "head = int(parts[2])",
            "head = int(parts[2]) + 1",
            "hooks/test_names.py",
        ),
        (
            "probes/attention.py",
            "p * np.log(p, out=np.zeros_like(p), where=p > 0), axis=-1",
            "-p * np.log(p, out=np.zeros_like(p), where=p > 0), axis=-1",
            "probes/test_probes.py::test_row_entropy_known_answers",
        ),
        (
            "probes/weights.py",
            "np.square(ratio(values, values[..., :1])).sum(axis=-1)",
            "ratio(values, values[..., :1]).sum(axis=-1)",
            "probes/test_structure.py::test_stable_rank_of_known_spectra",
        ),
        (
            "probes/effects.py",
            "np.where(none, np.nan, 1.0 - share)",
            "np.where(none, np.nan, share)",
            "probes/test_circuits.py::test_self_repair_of_known_effects",
        ),
        (
            "probes/parroting.py",
            "return context[len(context) - lag + np.arange(steps) % lag]",
            "return context[len(context) - lag - 1 + np.arange(steps) % lag]",
            "probes/test_parroting.py::test_the_lag_fits_the_whole_forecast",
        ),
        (
            "probes/logit_lens.py",
            "return np.stack([100 * means[0]",
            "return np.stack([means[0]",
            "probes/test_probes.py::test_gain_known_answers",
        ),
        (
            "probes/similarity.py",
            "-(share * share.clamp",
            "(share * share.clamp",
            "probes/test_structure.py::test_entropic_rank_of_known_arrangements",
        ),
        (
            "probes/rollout.py",
            "mean = pattern.mean(dim=0)",
            "mean = pattern.amax(dim=0)",
            "explain/test_attention.py::test_one_stack_rollout_equals_the_probe",
        ),
        (
            "core/estimates.py",
            "(np.abs(effects) > noise).sum(-1)",
            "(np.abs(effects) >= 0).sum(-1)",
            "probes/test_findings.py::test_the_four_statements_on_planted_effects",
        ),
        (
            "probes/parroting.py",
            "np.abs(forecast - parrots).mean(axis=-1) / scales",
            "np.abs(forecast - parrots).mean(axis=-1)",
            "probes/test_probe_checks.py::test_every_measurement_passes[context_parroting-bolt-nano-units]",
        ),
        (
            "viz/scenarios.py",
            "(steps >= start) & (steps < stop)",
            "(steps >= start) & (steps <= stop)",
            "cli/test_explain.py::test_what_if_comes_first_on_page",
        ),
        (
            "data/corruption.py",
            "return values - season + season[source]",
            "return values + season[source]",
            "data/test_corruption.py",
        ),
        (
            "data/text.py",
            "if len(set(names)) < len(names):",
            "if len(set(names)) < len(names) - 9:",
            "data/test_as_written.py::test_what_cannot_be_told_is_refused",
        ),
        (
            "data/frames.py",
            "counts = [int((~in_future[rows]).sum())",
            "counts = [int((in_future[rows]).sum())",
            "data/test_variates.py::test_file_and_frames_agree",
        ),
        (
            "data/categories.py",
            'if {*folded} <= {"false", "true"}:',
            'if {*folded} <= {"no", "yes"}:',
            "data/test_categories.py::test_truth_words_are_truth_values",
        ),
        (
            "explain/shapley.py",
            "return comb(players, size) // (1 + (2 * size == players))",
            "return comb(players, size) // 2",
            "explain/test_shapley.py::test_pairs_are_all_masks_once_each",
        ),
        (
            "explain/masking.py",
            "np.interp(steps[gap], steps[~inside], values[~inside])",
            "np.interp(steps[gap], steps, values)",
            "explain/test_masking.py::test_missing_references_depend_on_the_model",
        ),
        (
            "explain/segments.py",
            "return self.stop - self.start",
            "return self.stop - self.start + 1",
            "explain/test_segments.py",
        ),
        (
            "explain/parts.py",
            '("trend", trend - trend.mean()),',
            '("trend", trend),',
            "explain/test_parts.py::test_lines_and_seasons_are_told_apart",
        ),
        (
            "sweep/data/evaluation.py",
            "return horizon + stride * (windows - 1) + 1",
            "return horizon + stride * windows + 1",
            "sweep/test_evaluation.py::test_windows_are_those_of_gluonts",
        ),
        (
            "sweep/statistics/scores.py",
            "shift = np.abs(point - plain).mean(axis=1)",
            "shift = np.abs(point - plain).max(axis=1)",
            "sweep/test_scores.py::test_distances_of_rows_equal_single_ones",
        ),
        (
            "sweep/planner/search.py",
            "if changes[middle] < tolerance",
            "if changes[middle] > tolerance",
            "sweep/test_search.py",
        ),
        (
            "sweep/statistics/changes.py",
            '"n_datasets": (~absent).sum(1),',
            '"n_datasets": absent.sum(1),',
            "sweep/test_statistics.py::test_a_change_by_hand",
        ),
        (
            "sweep/planner/orders.py",
            "return _array(ranks[:, :1] - ranks[:, 1:],",
            "return _array(ranks[:, 1:] - ranks[:, :1],",
            "sweep/test_orders.py::test_every_score_of_every_architecture",
        ),
        (
            "core/ranks.py",
            "np.exp(-(shares * logs).sum(-1))",
            "-(shares * logs).sum(-1)",
            "core/test_ranks.py",
        ),
        (
            "core/ranks.py",
            "np.square(variances.sum(-1)) / np.square(variances).sum(-1)",
            "variances.sum(-1) / variances.max(-1)",
            "core/test_ranks.py",
        ),
        (
            "core/stats.py",
            "np.maximum.accumulate((count - np.arange(len(p))) * p[order])",
            "(count - np.arange(len(p))) * p[order]",
            "core/test_stats.py::test_holm_is_that_of_statsmodels",
        ),
        (
            "core/stats.py",
            "_TAILS = (LEVEL / 2, 1 - LEVEL / 2)",
            "_TAILS = (LEVEL, 1 - LEVEL)",
            "core/test_stats.py",
        ),
        (
            "probes/patching.py",
            "along / np.square(self.difference).sum(-1)",
            "along / np.abs(self.difference).sum(-1)",
            "probes/test_patching.py",
        ),
        (
            "models/noise.py",
            "flat = cached_flat_contexts(run).copy()",
            "flat = cached_flat_contexts(run)",
            "probes/test_flat_series.py",
        ),
        (
            "ablation/metrics.py",
            "np.ma.abs(series[:-season] - series[season:]).mean()",
            "np.ma.abs(series[:-season] - series[season:]).max()",
            "ablation/test_ablation.py",
        ),
        (
            "training/sam.py",
            "self._perturb(weights, self.rho / (norm + self.eps))",
            "self._perturb(weights, self.rho)",
            "training/test_sam.py",
        ),
        (
            "sweep/store.py",
            '_digest({"schema": SCHEMA_VERSION, **content})',
            '_digest({"schema": SCHEMA_VERSION, **dict([*content.items()][1:])})',
            "sweep/test_store.py::test_keys_follow_content_alone",
        ),
        (
            "report/serve/guard.py",
            "self.set_status(403)",
            "self.set_status(200)",
            "report/serve/test_guard.py::test_refusals_explain_and_static_files_open",
        ),
        (
            "report/serve/guard.py",
            "if len(self) >= PAGES:",
            "if len(self) > PAGES:",
            "report/serve/test_guard.py::test_open_pages_are_limited",
        ),
        (
            "viz/words.py",
            'sign = "" if value < 0 else "+"',
            'sign = "" if value > 0 else "+"',
            "viz/test_viz_summary.py",
        ),
        (
            "report/serve/guard.py",
            "if host not in self._hosts:",
            "if False:",
            "report/serve/test_guard.py::test_foreign_hosts_and_origins_are_refused",
        ),
        (
            "report/serve/guard.py",
            "if hmac.compare_digest(_token(request), self._token):",
            "if True:",
            "report/serve/test_guard.py::test_nothing_but_the_token_lets_in",
        ),
    )
]


def run_tests(file: str) -> None:
    """Run tests of the copy in which this process stands; end with pytest's code."""
    # a process begins with the paths of this one, which lead to the package as it is
    sys.path.insert(0, str(Path.cwd()))
    import pytest

    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", f"tests/{file}"]))


def is_caught(mutant: Mutant, copy: Path) -> bool:
    """Plant a fault, run the tests that should notice, and take it back."""
    path = copy / "tsfm_lens" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.file}: {text.count(mutant.old)} times {mutant.old!r}"
        )
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=run_tests, args=(mutant.tests,))
        process.start()
        process.join()
    finally:
        path.write_text(text, encoding="utf-8")
    # 1: tests failed; anything else is a fault of this script or of its table
    if process.exitcode not in (0, 1):
        raise SystemExit(f"{mutant.tests}: pytest ended with {process.exitcode}")
    return process.exitcode == 1


def main(packages: list[str]) -> None:
    """Plant every fault, or those of some packages."""
    by_package: dict[str, list[Mutant]] = {}
    for mutant in MUTANTS:
        by_package.setdefault(mutant.file.partition("/")[0], []).append(mutant)
    unknown = sorted(set(packages) - set(by_package))
    if unknown:
        known = ", ".join(sorted(by_package))
        raise SystemExit(
            f"no faults of {', '.join(unknown)}; there are some of {known}"
        )
    chosen = [
        mutant for package in packages or by_package for mutant in by_package[package]
    ]
    passed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        unneeded = shutil.ignore_patterns(".*", "__pycache__", "_build")
        shutil.copytree(ROOT, copy, ignore=unneeded)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        # what takes long to import and is not mutated is there before a process starts
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "transformers", "xarray", "plotly"])
        for mutant in chosen:
            caught = is_caught(mutant, copy)
            print(
                "caught" if caught else "PASSED", mutant.tests, mutant.new, flush=True
            )
            if not caught:
                passed.append(mutant)
        os.chdir(ROOT)
    print(f"{len(chosen) - len(passed)} of {len(chosen)} faults are caught")
    if passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
