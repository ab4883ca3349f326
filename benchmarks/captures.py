"""Capturing every residual stream and every head's z in three ways, on the same native
model.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch

from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.native import get_input, get_output
from tsfm_lens.models import Encoded, Lens


def names(lens: Lens) -> list[str]:
    """The hook points captured: residual streams before, within and after every block,
    and z of every head.
    """
    return [
        name
        for name in lens.hook_dict
        if "hook_resid" in name or name.endswith("hook_z")
    ]


def with_lens(lens: Lens, encoded: Encoded) -> Callable[[], object]:
    """Through ``run_with_cache``."""
    wanted = names(lens)
    return lambda: lens.run_with_cache(encoded, names_filter=wanted)


def with_torch_hooks(lens: Lens, encoded: Encoded) -> Callable[[], object]:
    """The same tensors through hand-written torch hooks."""
    points = [lens.registry.points[name] for name in names(lens)]

    def run() -> dict[str, torch.Tensor]:
        retained: dict[str, torch.Tensor] = {}
        handles = []
        for point in points:
            module = lens.adapter.model.get_submodule(point.site.module)

            def before(
                _module: object, args: tuple, kwargs: dict, point: Point = point
            ) -> None:
                retained[point.name] = get_input(args, kwargs, point.site.arg).detach()

            def after(
                _module: object, _args: tuple, out: object, point: Point = point
            ) -> None:
                retained[point.name] = get_output(out, point.site.arg).detach()

            if point.site.side == "in":
                handles.append(
                    module.register_forward_pre_hook(before, with_kwargs=True)
                )
            else:
                handles.append(module.register_forward_hook(after))
        lens.adapter.run(encoded.inputs)
        for handle in handles:
            handle.remove()
        return retained

    return run


def with_nnsight(lens: Lens, encoded: Encoded) -> Callable[[], object] | None:
    """The same tensors through nnsight; None where it is not installed, and for models
    whose input is no tensor.
    """
    if find_spec("nnsight") is None or lens.wiring.architecture not in (
        "chronos",
        "chronos-bolt",
    ):
        return None
    from nnsight import NNsight

    model = NNsight(lens.adapter.model)
    # nnsight wants its accesses in the order in which the modules run
    points = [lens.registry.points[name] for name in names(lens)]
    sites = [(point.name, point.site.module, point.site.side) for point in points]

    def run() -> dict[str, torch.Tensor]:
        retained: dict[str, torch.Tensor] = {}
        with model.trace(**encoded.inputs):
            for name, path, side in sites:
                module = model
                for part in path.split("."):
                    if part.isdigit():
                        module = module[int(part)]
                    else:
                        module = getattr(module, part)
                if side == "in":
                    retained[name] = module.input.save()
                else:
                    out = module.output
                    retained[name] = (out[0] if isinstance(out, tuple) else out).save()
        return retained

    return run
