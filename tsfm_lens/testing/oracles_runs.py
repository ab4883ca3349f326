"""Oracles about whole runs: rollouts, clean-up after failures, fan-out and replay.

Read :func:`rollout_equals_forward` first; ``_ROLLOUTS`` has one check for each kind of
rollout. :func:`leaves_no_trace` and :func:`fan_out_equals_alone` check the hooks and
the ablation engine on a model.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.ablation.rollouts import repeated
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import EditPattern, Noise, PatchFrom, Steer, Zero
from tsfm_lens.hooks.recorder import record
from tsfm_lens.hooks.replay import recorded_calls
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import Case, Deviations, first_stream, oracle, relative

__all__ = ["native_traces"]


@oracle(7, "rollout = forward", None, "`cached`, `joined`, `rollout`, token positions")
def rollout_equals_forward(case: Case) -> Deviations:
    """Check that a rollout, with its cache if it has one, = forwards without a cache.

    The values are compared at every hook point.

    Returns:
        Labels, and the relative deviation at each.
    """
    return _ROLLOUTS[case.lens.adapter.rollout](case)


def _token_rollout(case: Case, n_samples: int = 2) -> Deviations:
    """Check a rollout token by token against one teacher-forced pass.

    The pass gets the same decoder embeddings as the rollout.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    stack = case.lens.wiring.output_stack
    embed = first_stream(stack)
    kinds = (
        "hook_embed",
        "hook_resid_post",
        "hook_z",
        "hook_out",
        "hook_normalized",
        "hook_pattern",
    )
    names = [
        name
        for name, point in lens.registry.points.items()
        if point.stack == stack.name and name.endswith(kinds)
    ]
    _, steps = lens.run_with_cache(
        case.batch,
        names_filter=names,
        rollout=True,
        horizon=case.horizon,
        num_samples=n_samples,
        seed=1,
    )
    # the paths of a series lie side by side, as in the library's own rollout
    copies = SeriesBatch(
        values=tuple(series for series in case.batch.values for _ in range(n_samples)),
        ids=tuple(
            f"{name}-{draw}" for name in case.batch.ids for draw in range(n_samples)
        ),
    )
    # zeros stand for the drawn tokens, whose embeddings the hook below puts in
    encoded = lens.encode(
        copies, tokens=torch.zeros(len(copies), case.horizon, dtype=torch.long)
    )
    # each call of the rollout has one position; joined, (path, horizon, d_model)
    embeds = torch.cat([call.value for call in steps.calls(embed)], dim=1)
    with lens.hooks([(embed, lambda value, hook: embeds.to(value))]):
        _, full = lens.run_with_cache(encoded, names_filter=names)
    yield from _offsets(steps, names)
    for name in names:
        parts = [call.value for call in steps.calls(name)]
        # a pattern has as many keys as are cached by then
        width = max(part.shape[-1] for part in parts)
        parts = [pad(part, (0, width - part.shape[-1])) for part in parts]
        token_axis = 2 if name.endswith("hook_pattern") else 1
        yield name, relative(torch.cat(parts, dim=token_axis), full[name])


def _offsets(steps: Activations, names: list[str]) -> Deviations:
    """Check that each call starts where the one before ended.

    The start of a call comes from the wiring's ``cached``.

    Yields:
        A label, and the relative deviation there.
    """
    for name in (name for name in names if name.endswith("hook_resid_post")):
        length = 0
        for index, call in enumerate(steps.calls(name)):
            yield (
                f"{name}: positions held before call {index}",
                float(abs(call.offset - length)),
            )
            length += call.value.shape[1]


def _refeed_rollout(case: Case) -> Deviations:
    """Check that the second pass of a rollout is a plain forward.

    Its context is that of the first pass and each of the forecast's quantile paths.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    first = lens.adapter.prediction_length
    levels = lens.adapter.unrolled or lens.adapter.levels
    # a rollout that cannot run on items of several variates is checked with each
    # variate as an item
    if not lens.adapter.joint_rollout:
        case = replace(case, batch=as_series(list(case.batch.values)))
    names = [name for name in lens.registry.points if name.endswith(_STREAM)]
    # one step beyond the first pass is enough for a second one
    _, steps = lens.run_with_cache(
        case.batch, names_filter=names, rollout=True, horizon=first + 1
    )
    paths = lens.forecast(case.batch, first, quantiles=levels).quantiles
    contexts = []
    # paths outermost, so that the variates of a group stay together
    for path in range(len(levels)):
        for series, quantiles, future in zip(
            case.batch.values, paths, case.batch.futures, strict=True
        ):
            if lens.adapter.feeds_gaps:
                extension = np.full(first, np.nan)
            # a known future takes the place of the forecast
            elif future is not None:
                extension = future[:first]
            else:
                extension = quantiles[path]
            contexts.append(
                np.concatenate([series, extension])[-lens.adapter.context_length :]
            )
    copies = repeated(case.batch, len(levels))
    later = tuple(
        None if future is None else future[first:] for future in copies.futures
    )
    batch = replace(copies, values=tuple(contexts), futures=later, categories=())
    _, second = lens.run_with_cache(batch, names_filter=names, horizon=1)
    _, full = lens.run_with_cache(case.batch, names_filter=names, horizon=first)
    for name in names:
        calls = steps.calls(name)
        # native rows are series by series, those of `copies` path by path
        by_series = calls[1].value.unflatten(0, (len(case.batch), len(levels)))
        rows = by_series.transpose(0, 1).flatten(0, 1)
        # the longer horizon of the rollout may add masked tokens at the end; they
        # change no earlier token, and are left out
        n_tokens = full[name].shape[1]
        yield f"{name} step 0", relative(calls[0].value[:, :n_tokens], full[name])
        yield f"{name} step {calls[1].step}", relative(rows, second[name])


def _cache_rollout(case: Case) -> Deviations:
    """Check that the passes of a cached rollout are parts of one forward.

    That forward runs without a cache, on the inputs of all passes one after the other.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    names = [
        name
        for name, point in lens.registry.points.items()
        # the forward below is of the stack alone, without embedding and head
        if name.endswith(_STREAM) and point.layer >= 0
    ]
    # three passes: the second extends a cache that is filled, the third one that grew
    horizon = 2 * lens.adapter.prediction_length + 1
    draws: dict[str, Any] = {}
    if lens.adapter.readout == "distribution":
        draws["num_samples"] = 2
    model = lens.adapter.model
    path = lens.wiring.output_stack.entry
    with recorded_calls(model, [path]) as calls:
        _, steps = lens.run_with_cache(
            case.batch, names_filter=names, rollout=True, horizon=horizon, **draws
        )
    passes = [(call.args, call.kwargs) for call in calls[path]]
    if len(passes) < 3:
        yield "passes", float("inf")
        return
    inputs = lens.adapter.joined(passes)  # type: ignore[attr-defined]
    # run_with_cache() takes batches only, and the joined input encodes none
    activations = Activations(lens.registry.points, False, case.batch.ids)
    with record(lens.registry, names, activations), lens.registry.attach():
        model.get_submodule(path)(*inputs[0], **inputs[1])
    yield from _offsets(steps, names)
    for name in names:
        joined = torch.cat([call.value for call in steps.calls(name)], dim=1)
        yield name, relative(joined, activations[name])


def _single_rollout(case: Case) -> Deviations:
    """Check that a forecast is one pass.

    In it hooks must see the values of a forward of the same horizon.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    names = [
        name
        for name in lens.registry.points
        if name.endswith(_STREAM) and name != "unembed.hook_out"
    ]
    _, steps = lens.run_with_cache(
        case.batch, names_filter=names, rollout=True, horizon=case.horizon
    )
    _, full = lens.run_with_cache(case.batch, names_filter=names, horizon=case.horizon)
    for name in names:
        yield name, relative(steps.calls(name)[0].value, full[name])
    yield "one pass", float(max(len(steps.calls(name)) for name in names) - 1)


_STREAM = ("hook_resid_post", "hook_z", "hook_out", "hook_normalized")
_ROLLOUTS = {
    "tokens": _token_rollout,
    "refeed": _refeed_rollout,
    "cache": _cache_rollout,
    "single": _single_rollout,
}


def _even(pattern: Tensor) -> Tensor:
    """Spread each query's attention evenly over the keys that it attends to."""
    # not over all keys: what padding holds depends on the batch
    attended = (pattern > 0).to(pattern)
    return attended / attended.sum(dim=-1, keepdim=True).clamp(min=1.0)


@oracle(8, "no trace left", 0.0, "hooks that the adapter sets and does not take away")
def leaves_no_trace(case: Case) -> Deviations:
    """Check that after any context ends, normally or not, the model has no hook.

    It must forecast as before.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    plain = lens.forward(case.encoded)
    component = writers(lens.wiring)[0]
    attends = any(stack.attention_kinds() for stack in lens.wiring.stacks)
    nested_point = "**.hook_resid_post"
    write_point = "**.hook_out"
    if attends:
        nested_point = "**.hook_pattern"
        write_point = "**.hook_z"

    # KeyboardInterrupt is no Exception: clean-up by `except Exception` would miss it
    def boom(value: Tensor, hook: object) -> Tensor:
        raise KeyboardInterrupt

    def nested() -> None:
        with (
            lens.ablate(component),
            lens.hooks([(nested_point, boom)]),
            lens.ablate(component),
        ):
            lens.forward(case.encoded)

    def recording() -> None:
        stream = f"{lens.wiring.output_stack.prefix}.0.hook_resid_post"
        with lens.hooks([(stream, boom)]):
            lens.run_with_cache(case.encoded)

    # the first hook is right, and must not stay when the second is refused
    def unknown() -> None:
        with lens.hooks([(write_point, boom), ("no_such_point", boom)]):
            raise AssertionError("an unknown name was accepted")

    def fanned() -> None:
        with lens.hooks([(write_point, boom)]):
            run_variants(lens, case.encoded, [Variant.zero(component)])

    def thread() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(nested).result()

    for attempt in (nested, recording, unknown, fanned, thread):
        with suppress(KeyboardInterrupt, LookupError):
            attempt()
        yield f"hooks after {attempt.__name__}", float(native_traces(lens))
    yield "output", 0.0 if torch.equal(lens.forward(case.encoded), plain) else 1.0


def native_traces(lens: Lens) -> int:
    """Count the hooks and shadowed forwards that are left on a model.

    They are torch hooks and forwards of the native model, and hooks on the points of
    the lens.

    Args:
        lens: the model.

    Returns:
        Their number, 0 where nothing is left.

    Example:
        >>> testing.native_traces(lens)
        0
    """
    count = sum(
        len(point.fwd_hooks) + len(point.bwd_hooks) for point in lens.hook_points()
    )
    kinds = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
    )
    for module in lens.adapter.model.modules():
        count += sum(len(getattr(module, kind) or ()) for kind in kinds)
        # a shadowed forward is an attribute of the module; its own is one of its class
        count += "forward" in module.__dict__
    return count


def _first_layer_write(stack: Stack) -> str:
    """Return the hook point of the first layer's last write to the stream.

    In most blocks, it is the write of the MLP.
    """
    return f"{stack.prefix}.0.{stack.rows(0)[-1].kind}.hook_out"


@oracle(
    9,
    "fan-out and replay",
    2e-5,
    "`upstream`, `unread`, `keys_from`, inputs whose first axis is not the batch (`ids`"
    " of `Encoded`)",
)
def fan_out_equals_alone(case: Case, *, most: int = 24) -> Deviations:
    """Check that a variant gives the same in a batch of variants as alone.

    The batch runs twice, once with stored outputs for the modules that no variant
    changes. About ``most`` components of each stack are checked.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    variants = []
    for stack in lens.wiring.stacks:
        components = writers(lens.wiring, stack.name)
        variants += [
            Variant.zero(component)
            for component in components[:: max(1, len(components) // most)]
        ]
        last = stack.n_layers - 1
        variants.append(Variant.zero(components[0], components[-1]))
        noise = Noise(f"{stack.prefix}.{last}.hook_resid_post", scale=0.5, seed=2)
        variants.append(Variant(f"noise at {noise.target}", (noise,)))
        write_point = _first_layer_write(stack)
        variants.append(
            Variant(f"rows of {write_point}", (Zero(write_point, rows=[0]),))
        )
        for attention in stack.attentions(last):
            target = Component(stack.name, last, attention.kind)
            half = EditPattern(target, lambda pattern: 0.5 * pattern, rows=[0])
            variants.append(Variant(f"half the pattern of {target}", (half,)))
            even = EditPattern(target, _even)
            # steering makes a variant's stream unlike all others, so that values of
            # another variant would show
            steer = Steer(write_point, torch.ones(stack.d_model))
            variants.append(Variant(f"even pattern of {target}", (even,)))
            variants.append(
                Variant(f"even pattern of {target}, steered", (steer, even))
            )
    patch = PatchFrom(_first_layer_write(lens.wiring.output_stack), case.acts)
    # components are those of the last stack, the output stack
    variants.append(Variant("patched", (patch, Zero(str(components[-1])))))
    # changes nothing, so that all of its run may be replayed
    variants.append(Variant("nothing", ()))
    # four at once, so that there are several chunks, each with variants of several
    # kinds
    together = run_variants(
        lens, case.encoded, variants, max_rows=4 * len(case.encoded.rows)
    )
    without_replay = run_variants(lens, case.encoded, variants, replay=False)
    for index, variant in enumerate(variants):
        with lens.edit(*variant.interventions):
            alone = lens.forward(case.encoded)
        yield f"replayed {variant.name}", relative(together[index], alone)
        yield f"fanned out {variant.name}", relative(without_replay[index], alone)
