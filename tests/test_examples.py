"""The example notebooks run from top to bottom on the embedded checkpoints, and ship without outputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from nbclient.exceptions import CellExecutionError

import tsfm_lens
from executing import EXAMPLES, executed, figures, printed
from tsfm_lens.testing import ORACLES, last_digit
from tsfm_lens.zoo import training_record

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_a_notebook_finds_nothing_of_another_one(tmp_path: Path) -> None:
    first, second = (nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]) for code in ("a = 1", "a"))
    for name, notebook in (("first", first), ("second", second)):
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    executed(tmp_path / "first.ipynb")
    with pytest.raises(CellExecutionError, match="NameError"):
        executed(tmp_path / "second.ipynb")


def test_there_are_examples() -> None:
    assert NOTEBOOKS


def test_first_look_finds_heads_that_matter_more_than_others() -> None:
    """The last cells state a share for both models; three heads can never hold less than an even spread."""
    notebook = executed(EXAMPLES / "01-first-look.ipynb")
    ratios = [float(found) for found in re.findall(r"([\d.]+) times an even spread", printed(notebook))]
    assert len(ratios) == 2
    assert all(ratio >= 1 for ratio in ratios)
    assert figures(notebook) == 9


def test_own_model_is_wired_in_one_short_cell() -> None:
    notebook = nbformat.read(EXAMPLES / "02-your-own-model.ipynb", as_version=4)
    (wiring,) = [cell.source for cell in notebook.cells if "(Adapter)" in cell.source]
    assert len(wiring.splitlines()) <= 60


def test_own_model_passes_every_oracle_and_wrong_wirings_do_not() -> None:
    """The trained model forecasts about as well as the last season repeated, and no wrong table passes."""
    notebook = executed(EXAMPLES / "02-your-own-model.ipynb")
    text = printed(notebook)
    assert f"{len(ORACLES)} of {len(ORACLES)} oracles passed" in text
    assert float(re.findall(r"repeating the last season: ([\d.]+)", text)[0]) < 1.3
    right, interleaved = re.findall(r"my-forecaster: Forecaster.*?└", text, flags=re.DOTALL)
    assert "failed" not in right.lower()
    assert "failed" in interleaved.lower()
    assert "10 head order: off by" in text
    assert figures(notebook) == 4


SHOWN = 512  # steps that bolt-nano is shown
FRIDAYS = (50, 29, 22, 15)  # days from the forecast day's end to the end of the series


def fridays(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts (day, time) and what came (day, 24), cut out of the series by hand."""
    (values,) = tsfm_lens.bundled("pedestrians").values
    ends = [len(values) - 24 * count for count in FRIDAYS]
    return np.stack([values[end - 24 - steps : end - 24] for end in ends]), np.stack(
        [values[end - 24 : end] for end in ends]
    )


def moved_season(context: np.ndarray) -> np.ndarray:
    return np.stack(tsfm_lens.data.shift_phase(context, 12, period=24, keep_scale=True).values)


def numbers(text: str, pattern: str) -> list[float]:
    """Every group of the only match of a pattern, percent as shares."""
    (found,) = re.findall(pattern, re.sub(r"\s+", " ", text))
    found = (found,) if isinstance(found, str) else found
    return [float(value.rstrip("%")) / (100 if value.endswith("%") else 1) for value in found]


def errors(notebook: nbformat.NotebookNode) -> str:
    """What went to stderr, without the progress of reading weights."""
    outputs = [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if output.get("name") == "stderr"
    ]
    return "".join(
        line for output in outputs for line in re.split(r"[\r\n]", output["text"]) if "Loading weights" not in line
    )


class ByHand:
    """bolt-nano with plain torch hooks that put stored values at modules' outputs, and nothing of the package's own."""

    def __init__(self) -> None:
        self.lens = tsfm_lens.load("bolt-nano")
        self.model = self.lens.adapter.model

    def forecast(self, context: np.ndarray) -> np.ndarray:
        return self.lens.forecast(context, 24).median

    def site(self, name: str) -> tuple[torch.nn.Module, slice | None]:
        """Module and columns of a head's values on the way into the output projection, or an MLP's module."""
        stack, layer, kind, *head = name.split(".")
        block = getattr(self.model, stack).block[int(layer)]
        if kind == "mlp":
            return block.layer[-1].DenseReluDense, None
        o = block.layer[0].SelfAttention.o if kind == "self_attn" else block.layer[1].EncDecAttention.o
        width = o.in_features // 4
        return o, slice(int(head[0]) * width, (int(head[0]) + 1) * width) if head else slice(None)

    def patched(self, context: np.ndarray, source: np.ndarray, names: list[str]) -> np.ndarray:
        """The forecast of a context with components as in the run of another."""
        kept: dict[str, torch.Tensor] = {}

        def reading(name: str, columns: slice | None) -> Any:
            def hook(module: Any, inputs: Any, output: Any = None) -> None:
                kept[name] = output if columns is None else inputs[0][..., columns]

            return hook

        def writing(name: str, columns: slice | None) -> Any:
            def into(module: Any, inputs: Any) -> Any:
                value = inputs[0].clone()
                value[..., columns] = kept[name]
                return (value, *inputs[1:])

            return (lambda module, inputs, output: kept[name]) if columns is None else into

        def run(values: np.ndarray, make: Callable[[str, slice | None], Any]) -> np.ndarray:
            with ExitStack() as hooks:
                for name in names:
                    module, columns = self.site(name)
                    register = module.register_forward_hook if columns is None else module.register_forward_pre_hook
                    hooks.enter_context(register(make(name, columns)))
                return self.forecast(values)

        run(source, reading)
        return run(context, writing)

    def stream_patched(self, context: np.ndarray, source: np.ndarray, layer: int, token: int) -> np.ndarray:
        """The forecast with one token's encoder stream after a layer as in the run of another context."""
        kept: list[torch.Tensor] = []
        block = self.model.encoder.block[layer]

        def writing(module: Any, inputs: Any, output: Any) -> Any:
            stream = output[0].clone()
            stream[:, token] = kept[0][:, token]
            return (stream, *output[1:])

        with block.register_forward_hook(lambda module, inputs, output: kept.append(output[0])):
            self.forecast(source)
        with block.register_forward_hook(writing):
            return self.forecast(context)


def on_the_way(forecast: np.ndarray, base: np.ndarray, source: np.ndarray) -> float:
    """Median share of the way from the base's forecast to the source's."""
    way = source - base
    return float(np.median(((forecast - base) * way).sum(1) / (way * way).sum(1)))


def test_lines_of_thought_know_the_next_hour_and_two_heads_write_the_rushes() -> None:
    """Correlations and errors are computed again from logits and forecasts, and the rush hours from the counts."""
    notebook = executed(EXAMPLES / "03-lines-of-thought.ipynb")
    text = printed(notebook)
    assert figures(notebook) == 6
    assert not errors(notebook)
    bolt, chronos = tsfm_lens.load("bolt-nano"), tsfm_lens.load("chronos-nano")
    context, truth = fridays(SHOWN)
    short, _ = fridays(128)
    spread = short.std(1)
    last, before = numbers(text, r"with a correlation of ([\d.]+), the hour before repeated with ([\d.]+)")
    encoded = chronos.encode(short, future=truth)
    with torch.no_grad():
        logits, _ = chronos.run_with_cache(encoded, names_filter=["unembed.hook_out"])
    first = chronos.adapter.first_value_token
    centers = chronos.native.tokenizer.centers
    weights = logits[:, :24, first : first + len(centers)].softmax(-1)
    expected = (weights * centers).sum(-1).numpy()
    assert last == pytest.approx(
        np.median([np.corrcoef(a, b)[0, 1] for a, b in zip(expected, truth, strict=True)]), abs=last_digit(2)
    )
    late = np.column_stack([short[:, -1], truth[:, :-1]])
    assert before == pytest.approx(
        np.median([np.corrcoef(a, b)[0, 1] for a, b in zip(late, truth, strict=True)]), abs=last_digit(2)
    )
    alone, whole_day = numbers(text, r"Alone it is off by ([\d.]+) standard deviations, bolt-nano by ([\d.]+)")
    for printed_error, lens, values in ((alone, chronos, short), (whole_day, bolt, context)):
        median = lens.forecast(values, 24, seed=0).median
        assert printed_error == pytest.approx(np.median(np.abs(median - truth).mean(1) / spread), abs=last_digit(2))
    profile = truth.mean(0)
    rushes = [int(profile[:12].argmax()), 12 + int(profile[12:].argmax())]
    written = sorted(map(int, numbers(text, r"They write most at (\d+):00 and at (\d+):00")))
    assert all(abs(hour - rush) <= 1 for hour, rush in zip(written, rushes, strict=True))
    share, even = numbers(text, r", write (\d+%)\. An even spread would be (\d+%)")
    assert share > even


def test_heads_that_find_the_season_follow_it_and_copying_needs_them() -> None:
    """Attention of the named heads is read off raw patterns, and their part in the copy by zeroed weights."""
    notebook = executed(EXAMPLES / "04-induction-and-parroting.ipynb")
    text = printed(notebook)
    assert figures(notebook) == 8
    assert not errors(notebook)
    hand = ByHand()
    context, _ = fridays(SHOWN)
    named = re.findall(r"(decoder\.\d\.cross_attn\.\d), (\d+) h into the season: with days of 20 h (\d+)%", text)
    assert named
    stretched = tsfm_lens.data.swap_season(context, 20, period=24, keep_scale=True)
    points = [f"decoder_blocks.{layer}.cross_attn.hook_pattern" for layer in range(3)]
    _, acts = hand.lens.run_with_cache(hand.lens.encode(stretched), names_filter=points)
    starts = np.arange(-SHOWN, 0, 4)
    for head, offset, share in named:
        _, layer, _, index = head.split(".")
        pattern = acts[points[int(layer)]][:, int(index), 0].numpy()[:, : len(starts)]
        found = np.median(pattern[:, starts % 20 == int(offset)].sum(1))
        assert found == pytest.approx(int(share) / 100, abs=last_digit(2))
        assert found > 0.8
    yesterday = {}
    for name in ("bolt-nano", "chronos-nano"):
        lens = tsfm_lens.load(name)
        values, _ = fridays(lens.adapter.context_length)
        median = lens.forecast(values, 24, seed=0).median
        yesterday[name] = np.median(np.abs(median - values[:, -24:]).mean(1) / values.std(1))
    found = numbers(
        text, r"Fridays are ([\d.]+) standard deviations from the day before, those of bolt-nano ([\d.]+)\."
    )
    assert found == pytest.approx([yesterday["chronos-nano"], yesterday["bolt-nano"]], abs=last_digit(2))
    plain = np.abs(hand.forecast(context) - context[:, -24:]).mean(1) / context.std(1)
    for head, loss in re.findall(r"(decoder\.\d\.cross_attn\.\d) \(([\d.]+)\)", text):
        o, columns = hand.site(head)
        weight = o.weight.data.clone()
        o.weight.data[:, columns] = 0
        without = np.abs(hand.forecast(context) - context[:, -24:]).mean(1) / context.std(1)
        o.weight.data.copy_(weight)
        assert float(loss) == pytest.approx(np.median(without - plain), abs=last_digit(2))


def test_patching_finds_the_phase_in_the_register_token() -> None:
    """Heads, a branch and the register are patched again with plain torch hooks."""
    notebook = executed(EXAMPLES / "05-patching-a-season.ipynb")
    text = printed(notebook)
    assert figures(notebook) == 5
    assert not errors(notebook)
    hand = ByHand()
    context, _ = fridays(SHOWN)
    moved = moved_season(context)
    clean, corrupted = hand.forecast(context), hand.forecast(moved)
    registered = numbers(text, r"recovers (\d+%) after layer 0, (\d+%) after layer 1, and (\d+%) after layer 2")
    for layer, share in enumerate(registered):
        found = on_the_way(hand.stream_patched(moved, context, layer, -1), corrupted, clean)
        assert share == pytest.approx(found, abs=last_digit(2))
    assert registered[0] < min(registered[1:])
    ((first, one, second, two),) = re.findall(r"In the decoder, (\S+) recovers (\d+)% and (\S+) (\d+)%", text)
    (branch,) = numbers(text, r"encoder\.0\.self_attn recovers (\d+%)")
    for name, share in ((first, int(one) / 100), (second, int(two) / 100), ("encoder.0.self_attn", branch)):
        assert share == pytest.approx(
            on_the_way(hand.patched(moved, context, [name]), corrupted, clean), abs=last_digit(2)
        )
    told, true = numbers(text, r"it says (-?[\d.]+), patching recovers (-?[\d.]+\d)")
    worst = re.findall(r"furthest off for\s+(\S+):", text)
    assert true == pytest.approx(on_the_way(hand.patched(moved, context, worst), corrupted, clean), abs=last_digit(2))
    assert abs(told - true) > 0.1


def test_the_circuit_is_faithful_by_hand_and_cannot_lose_a_component() -> None:
    """The named components forecast alone, with all others set from the moved season by plain torch hooks."""
    notebook = executed(EXAMPLES / "06-a-minimal-circuit.ipynb")
    text = printed(notebook)
    assert figures(notebook) == 5
    assert not errors(notebook)
    hand = ByHand()
    context, _ = fridays(SHOWN)
    moved = moved_season(context)
    heads = [
        f"decoder.{layer}.{kind}.{head}"
        for layer in range(3)
        for kind in ("self_attn", "cross_attn")
        for head in range(4)
    ]
    everything = [*heads, *(f"decoder.{layer}.mlp" for layer in range(3))]
    whole = hand.forecast(context)

    def distance(given: list[str]) -> np.ndarray:
        return np.sqrt(np.square(hand.patched(context, moved, given) - whole).mean(1))

    nothing = distance(everything)

    def faithfulness(kept: set[str]) -> float:
        return float((1 - distance([name for name in everything if name not in kept]) / nothing).mean())

    circuit = set(re.findall(r"decoder\.[\w.]*\w", re.findall(r"The circuit: (.*)\.\n", text)[0]))
    size, of, kept, rest = numbers(
        text, r"(\d+) of (\d+) components keep (\d+%) of the forecast; all the others keep (-?\d+%)"
    )
    assert (len(circuit), len(everything)) == (size, of)
    assert faithfulness(circuit) == pytest.approx(kept, abs=last_digit(2))
    assert faithfulness(set(everything) - circuit) == pytest.approx(rest, abs=last_digit(2))
    assert all(faithfulness(circuit - {name}) < 0.9 <= kept for name in circuit)
    corrupted = hand.forecast(moved)
    alone = {name: on_the_way(hand.patched(moved, context, [name]), corrupted, whole) for name in heads}
    first = sorted(alone, key=lambda name: -alone[name])[:3]
    assert f"recovers (05): {len(circuit & set(first))} of its first 3 heads are in the circuit" in text
    for name, share in re.findall(r"(\S+) is needed for the copy, and recovers (-?\d+)%", text):
        assert name not in circuit
        assert int(share) / 100 == pytest.approx(alone[name], abs=last_digit(2))
    (usual,) = numbers(text, r"New Year's Eve \d+%, where the Fridays keep (\d+%)")
    assert usual == kept
    elsewhere = numbers(text, r"On electricity the same circuit keeps (\d+%), on New Year's Eve (\d+%)")
    assert ("it carries over" in text) == (min(elsewhere) >= 0.9)


def test_heads_are_born_in_training_and_not_found_before() -> None:
    """Steps and counts are read off the records again; the model before its first step has no induction head."""
    notebook = executed(EXAMPLES / "07-when-heads-are-born.ipynb")
    text = printed(notebook)
    assert figures(notebook) == 2
    assert not errors(notebook)
    for name, score in (("chronos-nano", "prefix_matching"), ("bolt-nano", "advantage")):
        record = training_record(name)
        steps, copying = record["training_step"].values.tolist(), record["copying"].values
        risen = [float(share - copying[0]) / float(copying[-1] - copying[0]) for share in copying]
        half = next(place for place, share in enumerate(risen) if share >= 0.5)
        found = re.search(rf"{name}: half of its copying came between steps ([\d,]+) and ([\d,]+)", text)
        assert found is not None
        assert [int(step.replace(",", "")) for step in found.groups()] == steps[half - 1 : half + 1]
        matching = [
            sum(bool(seen) and one >= 0.1 for seen, one in zip(*pair, strict=True))
            for pair in zip(
                record[f"{score}_stands_out"].values.reshape(len(steps), -1),
                record[score].values.reshape(len(steps), -1),
                strict=True,
            )
        ]
        told = rf"{name}.*?(\d+) heads match at step 0, (\d+) before that stretch, (\d+) at the end"
        found = re.search(told, text, flags=re.DOTALL)
        assert found is not None
        assert [int(count) for count in found.groups()] == [matching[0], matching[half - 1], matching[-1]]
    trained, before = numbers(text, r"finds (\d+) induction heads in the trained model, (\d+) in untrained ones")
    assert trained > before == 0
