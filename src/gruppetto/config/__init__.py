"""One file says what a run is: ``RUN.toml``, composed of the settings that each part of the house keeps for itself.

Read :mod:`~gruppetto.config.run` (what there is to set), :mod:`~gruppetto.config.load` (defaults, then the preset, then
the file, then the command line), :mod:`~gruppetto.config.kinds` (texts to values, with the fix when they are not),
:mod:`~gruppetto.config.write` (the resolved file), :mod:`~gruppetto.config.presets`.
"""

from __future__ import annotations

from gruppetto.config.load import load_run
from gruppetto.config.presets import PRESETS
from gruppetto.config.run import LearnerEntry, RunConfig
from gruppetto.config.write import to_toml

__all__ = ["PRESETS", "LearnerEntry", "RunConfig", "load_run", "to_toml"]
