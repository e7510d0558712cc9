"""The global weights of a run, wherever they are: with its syncer, or in the state directory of one that is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from gruppetto.config import RunConfig, load_run
from gruppetto.errors import AddressError, StateError
from gruppetto.launch.ask import find_endpoint
from gruppetto.launch.ask_shards import fetch_whole_model
from gruppetto.launch.papers import looker_papers, looker_papers_in
from gruppetto.report.rundir import RUN
from gruppetto.runtime.saved_model import load_model
from gruppetto.runtime.security.places import Papers
from gruppetto.runtime.store import holds_commits

__all__ = ["FoundWeights", "find_weights"]

SYNCER = "syncer"
"""The state directory, in a run directory without settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWeights:
    """Θ after ``round``, float32 by name. ``config``: the settings beside it, None where there are none."""

    round: int
    tensors: Mapping[str, NDArray[np.float32]]
    config: RunConfig | None
    file: bytes | None = None
    """The same as the safetensors file that a syncer gave; None where it was read from a state directory."""


def find_weights(source: str, *, certs: str | None = None, token_file: str | None = None) -> FoundWeights:
    """``source`` is a run directory, the state directory of a syncer, or the address of one.

    A syncer that answers is asked; of one that is gone the state directory is read. Raises :class:`StateError` where
    there are no weights, and what asking raises.
    """
    directory = Path(source)
    if not directory.is_dir():
        return _of_syncer(source, looker_papers(certs, token_file), None)
    config = _config_in(directory)
    state = _state_in(directory, config)
    if (endpoint := find_endpoint(state, living=True)) is not None:
        return _of_syncer(endpoint.url, looker_papers_in(directory, certs, token_file), config)
    round, tensors = load_model(state)
    return FoundWeights(round=round, tensors=tensors, config=config)


def _of_syncer(url: str, papers: Papers, config: RunConfig | None) -> FoundWeights:
    found = fetch_whole_model(url, token=papers.token, tls=papers.tls)
    if found is None:
        raise StateError("holds no weights yet", where=url, fix="wait until its first learner has given it some")
    try:
        tensors = safetensors.numpy.load(found.content)
    except (safetensors.SafetensorError, ValueError) as error:
        fix = "give the address of a gruppetto syncer"
        raise AddressError(f"gives no weights that can be read ({error})", where=url, fix=fix) from error
    return FoundWeights(round=found.round, tensors=tensors, config=config, file=found.content)


def _state_in(directory: Path, config: RunConfig | None) -> Path:
    """Where the syncer of a run directory keeps its state; ``directory`` itself may be such a place."""
    if holds_commits(directory):
        return directory
    if config is not None:
        return directory / config.syncer.state
    return directory / SYNCER if holds_commits(directory / SYNCER) else directory


def _config_in(directory: Path) -> RunConfig | None:
    """A service that was started without a file leaves its settings too; of what model it is, they do not say."""
    return load_run(directory / RUN, endless=True) if (directory / RUN).is_file() else None
