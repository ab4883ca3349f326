"""Parts that the wirings share.

Three kinds: known keys of configurations and their checks (:func:`check_unknown`),
series as libraries take them (:func:`padded`, :func:`by_role`), and rows of wiring
tables (:func:`attention_row`, :func:`mlp_row`). No architecture is defined here.
"""

from __future__ import annotations

import copy
import json
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tsfm_lens.core.errors import CheckpointError, InputError, WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site


def contexts(values: Iterable[Any]) -> list[Tensor]:
    """Return one float64 tensor per row."""
    return [torch.tensor(series, dtype=torch.float64) for series in values]


def items(batch: SeriesBatch) -> list[Tensor]:
    """Return one tensor per item.

    It is (time,), or (variate, time) where an item has several variates.
    """
    rows = contexts(batch.values)
    groups = [
        [rows[row] for row in members] for members in batch.rows_by_group().values()
    ]
    return [item[0] if len(item) == 1 else torch.stack(item) for item in groups]


def padded(batch: SeriesBatch, length: int) -> Tensor:
    """Return the series as (batch, length), float32.

    Shorter series are padded with NaN on the left, longer ones are cut there.
    """
    # libraries take single precision
    out = np.full((len(batch), length), np.nan, dtype=np.float32)
    for row, series in zip(out, batch.values, strict=True):
        # cut and padded on the left, so that all series end at the forecast start
        tail = series[-length:]
        row[length - len(tail) :] = tail
    return torch.from_numpy(out)


def by_item(batch: SeriesBatch, length: int) -> Tensor:
    """Return (item, variate, length), float32, padded as in :func:`padded`."""
    result: Tensor = padded(batch, length).unflatten(0, (-1, batch.n_variates))
    return result


def by_role(batch: SeriesBatch, length: int, horizon: int) -> dict[str, Tensor]:
    """Return (item, variate, time), float32, for each role that occurs.

    Known covariates continue over the horizon.
    """
    # items are stacked into one tensor per role, so that all must have the same roles
    roles_by_group = {
        group: tuple(batch.roles[row] for row in rows)
        for group, rows in batch.rows_by_group().items()
    }
    first = batch.groups[0]
    first_roles = roles_by_group[first]
    n_variates = batch.n_variates
    for group, roles in roles_by_group.items():
        if roles != first_roles:
            raise InputError(
                f"{group!r} has {_counts(roles)} and {first!r}"
                f" {_counts(first_roles)}; this model takes items alike"
            )
    full = by_item(batch, length)
    known = torch.tensor(batch.known_future(horizon)).float()
    # (item, variate, step)
    ahead = known.unflatten(0, (-1, n_variates))
    parts = {}
    for role in dict.fromkeys(first_roles):
        mask = torch.tensor([variate_role == role for variate_role in first_roles])
        parts[role] = full[:, mask]
        if role == "known":
            parts[role] = torch.cat([parts[role], ahead[:, mask]], -1)
    return parts


def with_covariates(targets: Tensor, roles: tuple[str, ...], axis: int) -> Tensor:
    """Return rows of all series, item by item, NaN for covariates.

    ``targets`` are the forecasts of targets, counted along ``axis``.
    """
    if set(roles) == {"target"}:
        return targets
    per_item = targets.movedim(axis, 0).unflatten(0, (-1, roles.count("target")))
    shape = (len(per_item), len(roles), *per_item.shape[2:])
    full = per_item.new_full(shape, float("nan"))
    # covariates keep NaN, which tells them from targets that the model forecasts
    full[:, [row for row, role in enumerate(roles) if role == "target"]] = per_item
    result: Tensor = full.flatten(0, 1).movedim(0, axis)
    return result


def _counts(roles: tuple[str, ...]) -> str:
    return ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))


Keys = dict[str, Any]
"""Keys of a configuration that a wiring understands.

The value of a key is the known keys of the object under it, else None.
"""


def keys(names: str, **parts: Keys) -> Keys:
    """Make the known keys of a configuration, given as one string.

    ``parts`` are keys whose value is an object with keys of its own.

    Returns:
        The keys, each with None or its own keys.
    """
    return {**dict.fromkeys(names.split()), **parts}


HUB = keys(
    "_name_or_path architectures auto_map chunk_size_feed_forward dtype"
    " generation_config id2label label2id model_type name_or_path output_attentions"
    " output_hidden_states problem_type return_dict torch_dtype transformers_version"
)
"""Keys that transformers writes into any config.json.

They change nothing inside a model.
"""

GENERATION = keys(
    "_from_model_config bos_token_id decoder_start_token_id do_sample eos_token_id"
    " max_length max_new_tokens output_attentions output_hidden_states pad_token_id"
    " return_dict_in_generate temperature top_k top_p transformers_version use_cache"
)
"""Keys of a generation_config.json that a wiring understands.

Under them the library still samples as the wirings say.
"""


def check_unknown(
    config: Mapping[str, Any], where: str, known: Keys, *, inside: str = ""
) -> None:
    """Refuse a configuration with keys that a wiring does not understand."""
    unknown = [f"{inside}{key}" for key in sorted(set(config) - set(known))]
    if unknown:
        raise WiringError(
            f"{where} has configuration keys that the wiring does not know:"
            f" {', '.join(unknown[:5])}. It may compute something else than the wiring"
            " says; refusing rather than showing wrong activations."
        )
    for key, value in config.items():
        if known[key] is not None:
            if not isinstance(value, Mapping):
                raise CheckpointError(
                    # the file may be anybody's: reprlib shortens what is long or deeply
                    # nested
                    f"{where} has {inside}{key}={reprlib.repr(value)}, expected an"
                    " object of settings"
                )
            check_unknown(value, where, known[key], inside=f"{inside}{key}.")


def check_config_values(
    config: Mapping[str, Any],
    where: str,
    expected: Mapping[str, Any],
    *,
    inside: str = "",
) -> None:
    """Refuse a configuration whose keys have other values than expected.

    The wiring describes models with the expected ones only.
    """
    for key, value in expected.items():
        if isinstance(value, Mapping):
            # an object that is absent leaves all of its keys at the library's defaults
            check_config_values(
                config.get(key, {}), where, value, inside=f"{inside}{key}."
            )
        elif key in config and config[key] != value:
            raise WiringError(
                f"{where} has {inside}{key}={reprlib.repr(config[key])}; the wiring"
                f" describes models with {value!r} only"
            )


def write_checkpoint(model: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Write config.json and model.safetensors.

    This is for libraries that can read but not write them.
    """
    write_tensors(model.state_dict(), config, folder)


def write_tensors(
    state: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path
) -> None:
    """Write tensors by name as :func:`write_checkpoint` does."""
    folder.mkdir(parents=True, exist_ok=True)
    # safetensors refuses tensors that are not contiguous
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def settings(folder: Path) -> dict[str, Any]:
    """Read the config.json of a folder."""
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def copied(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration that a library may change."""
    return copy.deepcopy(dict(config))


Matrices = tuple[Projection, Projection, Projection, Projection]
"""q, k, v and o of an attention."""


def projections(path: str, names: str) -> Matrices:
    """Return matrices q, k, v and o, whose names replace {} in a path."""
    q, k, v, o = (Projection(path.format(name)) for name in names.split())
    return q, k, v, o


def fused(path: str, layout: str, out: Projection, **fields: Any) -> Matrices:
    """Return matrices q, k and v, which are parts of one layer, and o."""
    q, k, v = (Projection(path, layout, part, 3, **fields) for part in range(3))
    return q, k, v, out


def attention_row(
    kind: str,
    module: str,
    matrices: Matrices,
    *,
    write: str = "",
    reads: Site | None = None,
    stream: str = "batch pos d_model",
    **fields: Any,
) -> Attention:
    """Describe an attention whose output is added to the stream.

    ``write`` is the module that returns what is added, if it is not ``module`` itself;
    ``reads`` the site of the stream that it reads, the input of the block if None.

    Returns:
        The row of the wiring.
    """
    if reads is None:
        reads = Site("", "in", 0, stream)
    return Attention(
        kind, module, Site(write or module, layout=stream), reads, *matrices, **fields
    )


def mlp_row(
    write: str,
    reads: str,
    layers: tuple[str, str],
    act: str = "",
    *,
    stream: str = "batch pos d_model",
    first: Projection | None = None,
    **fields: Any,
) -> Mlp:
    """Describe an MLP.

    ``write`` is the module that returns what is added to the stream, ``reads`` the one
    that takes the stream, ``layers`` are the first and the last layer, and ``first`` is
    the first matrix where a layer holds several.

    Returns:
        The row of the wiring.
    """
    # the hidden layer has the axes of the stream but for its width
    hidden = stream.replace("d_model", "d_mlp")
    into, out = layers
    sites = (
        Site(write, layout=stream),
        Site(reads, "in", 0, stream),
        Site(into, layout=hidden),
    )
    return Mlp(
        *sites,
        Site(out, "in", 0, hidden),
        out,
        first or Projection(into, "d_mlp"),
        act=act,
        **fields,
    )
