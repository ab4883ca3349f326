"""Exceptions of tsfm-lens.

    LensError
    ├── InputError          a series, file or argument cannot be used as it is
    ├── UnknownNameError    no hook point, component, series or checkpoint has this name
    ├── WiringError         the model's configuration or modules are not as a wiring
    │                       describes them
    ├── CheckpointError     no loadable checkpoint is there
    ├── HookError           an intervention does not fit the activation it meets
    ├── MissingExtraError   an optional package is not installed
    ├── RenderError         a figure could not be written in the format asked for
    ├── StoreError          a sweep's store cannot be written or read
    └── SweepFailedError    some groups of a sweep could not be computed; all others
                            are kept

Each also derives from the builtin it refines, so ``except ValueError`` keeps working.
A message says what was got, what was expected and what to do next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Self

# not the name of the package that is imported
DISTRIBUTION = "tsfm-lens-toolbox"


class LensError(Exception):
    """Base of every error that tsfm-lens raises on purpose.

    Why:
        What is not a LensError is a defect of the package, or of code that was handed
        to it.

    Cure:
        Read the message. The command line prints it alone and ends with exit code 1.

    Example:
        >>> try:
        ...     lens.forecast([[1.0, 2.0]], 0)
        ... except tsfm_lens.core.errors.LensError as error:
        ...     print(error)
        horizon 0 is not a number of steps; expected an integer from 1 to 100000
    """

    cures: tuple[Mapping[str, Any], ...] = ()
    """Options that avoid the error, each set by name and the likeliest first.

    An option of None is to be left out. None is applied: a person has to choose.
    """

    faults: Any = None
    """Faults of a file, a ``tsfm_lens.data.faults.Faults``, where it is about one."""

    advice: str = ""
    """End of the message, which a list of the ``cures`` takes the place of."""

    def with_cures(self, *cures: Mapping[str, Any], advice: str = "") -> Self:
        """Add the options that avoid it, the likeliest first.

        ``advice`` says in words what to do, and is added to the message.

        Returns:
            The error itself.
        """
        self.cures = tuple(cure for cure in cures if cure)
        self.advice = advice
        self.args = (f"{self}{advice}",)
        return self


class InputError(LensError, ValueError):
    """A series, file or argument cannot be used as it is.

    Why:
        It is empty, of another shape or type, or out of range; a file can be read in
        two ways; or the definition of a measurement does not allow this model, horizon
        or series.

    Cure:
        Give what the message expects. The page on your own data has the options for
        files; ``tsfm-lens measurements`` says which models a measurement is defined
        for.

    Example:
        >>> tsfm_lens.data.as_series([])
        Traceback (most recent call last):
        tsfm_lens.core.errors.InputError: there is no series: expected at least one
    """


class UnknownNameError(LensError, KeyError):
    """No hook point, component, series or checkpoint has this name.

    Why:
        The name is misspelt or of another model, or a pattern matches nothing.

    Cure:
        Take one of the nearest names in the message. ``lens.components()`` and
        ``lens.hook_table()`` list those of a model, ``tsfm-lens hooks MODEL``,
        ``tsfm-lens data`` and ``tsfm-lens models`` do on the command line.

    Example:
        >>> lens.components("decoder.9.mlp")
        Traceback (most recent call last):
        tsfm_lens.core.errors.UnknownNameError: no component 'decoder.9.mlp'. ...
    """

    def __str__(self) -> str:
        # KeyError would print the message in quotes
        return Exception.__str__(self)


class WiringError(LensError, ValueError):
    """The model's configuration or modules are not as a wiring describes them.

    Why:
        No wiring knows the model or a setting of its configuration; dropout or
        compilation would make two forwards differ; or a wiring of your own names a
        module, side or size that the model does not have.

    Cure:
        For a known model, put it into evaluation mode, uncompiled, with the version of
        its library that ``tsfm-lens doctor`` shows. For your own, fix the row that the
        message names: ``check_wiring`` says which oracle fails, and ``CONTRIBUTING.md``
        what to look at then.

    Example:
        >>> tsfm_lens.load(torch.nn.Linear(2, 2))
        Traceback (most recent call last):
        tsfm_lens.core.errors.WiringError: no wiring knows an object of type Linear. ...
    """


class CheckpointError(LensError, OSError):
    """No loadable checkpoint is there.

    Why:
        The folder has no safetensors file, or not all of them; a file is cut off or
        belongs to another configuration; or the hub cannot be reached. Pickled weights
        are never opened. Records of trainings raise it, too.

    Cure:
        Download the files named in the message elsewhere (``hf download OWNER/NAME``)
        and load the folder, or point ``HF_HOME`` to a cache that has them.

    Example:
        >>> tsfm_lens.load(folder)
        Traceback (most recent call last):
        tsfm_lens.core.errors.CheckpointError: ... is not a checkpoint: it has no ...
    """


class HookError(LensError, RuntimeError):
    """An intervention does not fit the activation it meets.

    Why:
        What was recorded has another number of series or positions than the run that it
        is put into; a hook returned another shape; or the kind of intervention has no
        meaning for the component.

    Cure:
        Record the source on as many series and steps as the run has, or say which with
        ``rows=`` and ``positions=``.

    Example:
        >>> from tsfm_lens.hooks import EditPattern
        >>> with lens.edit(EditPattern("decoder.0.mlp", lambda pattern: pattern)):
        ...     lens.forecast(run.batch, 2)
        Traceback (most recent call last):
        tsfm_lens.core.errors.HookError: EditPattern needs an attention branch or ...
    """


class MissingExtraError(LensError, ImportError):
    """An optional package is not installed.

    Why:
        Some models, Ray, chaotic systems and the linked view of notebooks each need a
        library of their own.

    Cure:
        Run the command in the message. ``tsfm-lens doctor`` shows what is there and how
        to add the rest.
    """


class RenderError(LensError, RuntimeError):
    """A figure could not be written in the format asked for.

    Why:
        A .png, .svg or .pdf is drawn by a browser through kaleido, and one of the two
        is missing or failed.

    Cure:
        Install the extra ``static`` and a Chrome or Chromium, or name it in
        ``BROWSER_PATH``. A .html or .json needs neither.
    """


class StoreError(LensError, OSError):
    """A sweep's store cannot be written or read.

    Why:
        The folder is not a store, is full or read-only, or was written by another
        version.

    Cure:
        Give the folder that ``tsfm-lens sweep`` printed, or make room; the same command
        then resumes.

    Example:
        >>> sweep.gather(folder)
        Traceback (most recent call last):
        tsfm_lens.core.errors.StoreError: ... is not a store of a sweep: ...
    """


class SweepFailedError(LensError, RuntimeError):
    """Some groups of a sweep could not be computed; all others are kept.

    Why:
        A model could not be opened or did not fit into memory for some variants, or the
        machines of a cluster are gone.

    Cure:
        The message has the first failure. Fix it and run the same command: finished
        cells are not computed again.
    """


def unknown_name(
    what: str, name: object, names: Iterable[str], *, hint: str = ""
) -> UnknownNameError:
    """Build the error for a ``name`` that no ``what`` has.

    Its message has the nearest of all ``names``, and a hint at where they are listed.

    Returns:
        The error to raise.
    """
    options = list(dict.fromkeys(names))
    # where nothing is near, the first names at least show what names look like
    nearest = get_close_matches(str(name), options, n=3, cutoff=0.4) or options[:3]
    if nearest:
        choice = f"Closest: {', '.join(nearest)}."
    else:
        choice = f"There is no {what} to choose from."
    return UnknownNameError(f"no {what} {str(name)!r}. {choice} {hint}".strip())


def missing_extra(
    purpose: str, extra: str, packages: Iterable[str] = (), *, hint: str = ""
) -> MissingExtraError:
    """Build the error for a ``purpose`` that needs the packages of an extra.

    Its message has the command that installs them.

    Returns:
        The error to raise.
    """
    absent = ", ".join(packages)
    detail = ""
    if absent:
        detail = f" ({absent} not installed)"
    return MissingExtraError(
        f"{purpose} needs the extra {extra!r}{detail}. Install it:"
        f" {install_command(extra)}. {hint}".strip()
    )


@cache
def install_command(extra: str) -> str:
    """Return the command that adds an extra to this package.

    It installs from where the package itself came from. A clone or a wheel is named by
    its path (``direct_url.json`` of PEP 610): the package is on no index, and what has
    its name there may be something else.
    """
    from importlib import metadata

    try:
        recorded = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        # imported from a folder on Python's path
        return f'pip install -e "{Path(__file__).parents[2]}[{extra}]"'
    # installed from an index, which leaves no record
    if recorded is None:
        return f'pip install "{DISTRIBUTION}[{extra}]"'
    origin = json.loads(recorded)
    url = origin["url"]
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return (
            f'pip install "{DISTRIBUTION}[{extra}] @'
            f' {vcs["vcs"]}+{url}@{vcs["commit_id"]}"'
        )
    editable = ""
    if origin.get("dir_info", {}).get("editable"):
        editable = "-e "
    path = _local_path(url)
    if path is None:
        return f'pip install "{DISTRIBUTION}[{extra}] @ {url}"'
    return f'pip install {editable}"{path}[{extra}]"'


def _local_path(url: str) -> str | None:
    """Return the path that a file URL names; None for another URL."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    parts = urlsplit(url)
    # also undoes %20 and, on Windows, the slash before a drive
    if parts.scheme == "file":
        return url2pathname(parts.path)
    return None
