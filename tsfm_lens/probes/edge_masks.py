"""Masks of edges: what each part reads of each earlier part, in one forward.

:class:`EdgeMasks` forecasts under a mask of edges. An edge is that of
:mod:`.path_patching`: it leads from a head or branch to a later one, or to the output.
The stream keeps all writes, and a part reads the stream less what masked edges carry
into it. The heads of an attention share their input, so each of them reads a copy of
all series of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Intervention
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.hooks.wiring import Attention, Writer
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.path_patching import OUTPUT, find_paths
from tsfm_lens.probes.sites import PatchSite


def list_edges(lens: Lens, sites: Sequence[PatchSite]) -> np.ndarray:
    """Return the edges between parts, and from parts to the output, (edge, 2).

    Two parts have an edge if the second one comes after the first and reads its stream.

    Args:
        lens: the model.
        sites: heads and branches.

    Returns:
        Sender and receiver of each edge, as indices into the sites; the index of the
        output is their number.
    """
    reads = [{site.stack, _source(_writer(lens, site.branch))} for site in sites]
    reads.append({lens.wiring.output_stack.name})
    is_edge = np.array([[sender.stack in names for names in reads] for sender in sites])
    is_edge[:, :-1] &= find_paths(lens, sites, sites)
    return np.argwhere(is_edge)


def edge_coords(sites: Sequence[PatchSite], edges: np.ndarray) -> dict[str, Any]:
    """Return coordinates that name edges, their senders and their receivers."""
    names = np.array([*(str(site.target) for site in sites), OUTPUT])
    senders, receivers = names[edges.T]
    return {
        "edge": [f"{one}->{other}" for one, other in names[edges]],
        "sender": ("edge", senders),
        "receiver": ("edge", receivers),
    }


def _writer(lens: Lens, branch: Component) -> Writer:
    return lens.wiring.stack(branch.stack).writer(branch.kind, branch.layer)


def _source(writer: Writer) -> str | None:
    """Return the other stack whose last stream an attention takes its keys from."""
    if isinstance(writer, Attention):
        return writer.keys_from or None
    return None


@dataclass(frozen=True)
class _ReadingBranch:
    """Branch that is a part, or whose heads are.

    Attributes:
        branch: this branch.
        writer: its row of the wiring.
        members: indices of the sites by head.
        first: copy of the series that the first of them reads.
    """

    branch: Component
    writer: Writer
    members: dict[int | None, int]
    first: int

    def columns(self, copies: int, nothing: int) -> list[int]:
        """Return which receiver reads each copy."""
        if not isinstance(self.writer, Attention):
            return [*self.members.values()] * copies
        columns = [nothing] * copies
        columns[self.first : self.first + len(self.members)] = self.members.values()
        return columns

    def copies(self, n_heads: int) -> list[int]:
        """Return the copy that each head reads, the last one if it is no part."""
        if None in self.members:
            return [self.first] * n_heads
        order = list(self.members)
        return [
            self.first + order.index(head) if head in self.members else -1
            for head in range(n_heads)
        ]


class EdgeMasks:
    """Forecasts under masks of edges.

    Attributes:
        run: whose series these are.
        edges: sender and receiver (edge, 2), see :func:`list_edges`.
        copies: of all series that run side by side; nothing is cut from the last.
    """

    def __init__(
        self, run: Run, sites: Sequence[PatchSite], bases: Mapping[str, Intervention]
    ) -> None:
        """Divide what reads the same stream among copies of the series.

        Args:
            run: a single forward, of series that do not see each other.
            sites: heads and branches, each a sender and a receiver.
            bases: interventions whose values are read where a mask is 0, by the hook
                point of a site.

        Raises:
            InputError: a branch is named beside its heads, or a norm follows heads.
        """
        lens = run.lens
        self.run = run
        self.edges = list_edges(lens, sites)
        self.output = len(sites)
        branches: dict[Component, dict[int | None, int]] = {}
        for number, site in enumerate(sites):
            branches.setdefault(site.branch, {})[site.head] = number
        self.readers: list[_ReadingBranch] = []
        used: dict[str | None, int] = {}
        for branch, members in branches.items():
            writer = _writer(lens, branch)
            if None in members and len(members) > 1:
                raise InputError(f"nodes hold {branch} and heads of it; name either")
            if writer.post_norm and None not in members:
                raise InputError(
                    f"a norm follows the heads of {branch}, so that no head has a write"
                    " of its own to cut; name the branch, or take path_patching"
                )
            source = _source(writer)
            first = 0
            if source is not None:
                # the keys of all layers are one stream, of which each head has a copy
                first = used.get(source, 0)
                used[source] = first + len(members)
            self.readers.append(_ReadingBranch(branch, writer, members, first))
        self.copies = 1 + max(
            reader.first + len(reader.members) for reader in self.readers
        )
        points = lens.registry.points
        self.bases = {
            point: base.change(points[point]) for point, base in bases.items()
        }

    def forecast(self, mask: Tensor) -> Tensor:
        """Return the forecast under a mask (edge,), in data units (series, step).

        Over an edge with the mask m the receiver reads m y + (1 - m) y_base, where y is
        what the sender writes under the mask.
        """
        run = self.run
        count = len(run.batch)
        forward = _MaskedForward(self, mask)
        with (
            run.lens.hooks(forward.hooks()),
            run.lens.running(count * self.copies),
        ):
            output = run.lens.adapter.run(run.encoded.repeated(self.copies))
        return run.read(output[-count:], run.encoded)


class _MaskedForward:
    """One forward under a mask: its hooks, and what the parts have written so far."""

    def __init__(self, masks: EdgeMasks, mask: Tensor) -> None:
        self.masks = masks
        self.state = masks.run.lens.registry.state
        self.count = len(masks.run.batch)
        # after the output comes a receiver from which nothing is cut
        self.nothing = masks.output + 1
        # share of each edge that is cut (sender, receiver)
        self.cut = mask.new_zeros(masks.output, self.nothing + 1)
        edges = torch.as_tensor(masks.edges, device=mask.device)
        self.cut = self.cut.index_put((edges[:, 0], edges[:, 1]), 1 - mask)
        # by stack, senders and by how much they differ from the base
        self.senders: dict[str, list[int]] = {}
        self.changes: dict[str, list[Tensor]] = {}
        self.carried: dict[str, Tensor] = {}

    def hooks(self) -> list[tuple[str, Any]]:
        """Return the hooks, of one point in the order in which they act."""
        masks = self.masks
        wiring = masks.run.lens.wiring
        copies = masks.copies
        hooks: list[tuple[str, Any]] = []
        # receivers at the ends of stacks, by copy
        ends = {wiring.output_stack.name: [masks.output] * copies}
        for reader in masks.readers:
            branch = reader.branch
            stack = wiring.stack(branch.stack)
            block = f"{stack.prefix}.{branch.layer}"
            order = stack.rows(branch.layer).index(reader.writer)
            stream = f"{block}.{RESIDUAL_NAMES[order]}"
            point = f"{block}.{branch.kind}"
            columns = reader.columns(copies, self.nothing)
            hooks.append((stream, partial(self.take, stack.name, point, columns)))
            source = _source(reader.writer)
            if source is not None:
                keys = ends.setdefault(source, [self.nothing] * copies)
                chosen = slice(reader.first, reader.first + len(reader.members))
                keys[chosen] = columns[chosen]
            if isinstance(reader.writer, Attention):
                shared = reader.copies(stack.n_heads)
                hooks.append((f"{point}.hook_z", partial(self.share, shared)))
            if None in reader.members:
                hooks.append((f"{point}.hook_out", partial(self.note, reader)))
            else:
                hooks.append((f"{point}.hook_z", partial(self.note_heads, reader)))
            hooks.append((f"{point}.hook_out", partial(self.put_back, point)))
        for name, columns in ends.items():
            stack = wiring.stack(name)
            end = f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"
            hooks.append((end, partial(self.take, name, end, columns)))
        return hooks

    def take(
        self, stack: str, name: str, columns: list[int], value: Tensor, hook: HookPoint
    ) -> Tensor:
        """Take what masked edges carry out of a stream (copy and series, pos, d)."""
        if stack not in self.changes:
            return value
        shares = self.cut[self.senders[stack]][:, columns].to(value)
        changes = torch.cat(self.changes[stack])
        carried = torch.einsum("sc,s...->c...", shares, changes).flatten(0, 1)
        self.carried[name] = carried
        return value - carried

    def put_back(self, name: str, value: Tensor, hook: HookPoint) -> Tensor:
        """Add to a write what was taken out of the stream for its branch alone."""
        if name not in self.carried:
            return value
        return value + self.carried[name]

    def share(self, copies: list[int], value: Tensor, hook: HookPoint) -> Tensor:
        """Give all copies the value that each head has in its own."""
        by_copy = value.unflatten(0, (-1, self.count))
        heads = torch.arange(len(copies), device=value.device)
        # (head, series, pos, d_head)
        own: Tensor = by_copy[copies, :, :, heads]
        return own.movedim(0, 2).repeat(self.masks.copies, 1, 1, 1)

    def note(self, reader: _ReadingBranch, value: Tensor, hook: HookPoint) -> None:
        """Note by how much a branch differs from its base."""
        self.add(reader, self.change(value, hook)[None])

    def note_heads(
        self, reader: _ReadingBranch, value: Tensor, hook: HookPoint
    ) -> None:
        """Note by how much what heads write differs from their base."""
        lens = self.masks.run.lens
        branch = reader.branch
        assert branch.kind is not None
        stack = lens.wiring.stack(branch.stack)
        heads = list(reader.members)
        weights = head_output_weights(
            lens.adapter.model, stack, branch.layer, branch.kind
        )[heads]
        # (head, series, pos, d_head)
        change = self.change(value, hook).movedim(2, 0)[heads]
        self.add(reader, change @ weights[:, None].to(change))

    def change(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Return the difference of the last copy from the base."""
        plain = value[-self.count :]
        return plain - self.masks.bases[str(hook.name)](plain, self.state)

    def add(self, reader: _ReadingBranch, changes: Tensor) -> None:
        """Note changes (sender, series, pos, d_model) of a reader's parts."""
        stack = reader.branch.stack
        self.senders.setdefault(stack, []).extend(reader.members.values())
        self.changes.setdefault(stack, []).append(changes)
