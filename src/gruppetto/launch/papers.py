"""Which papers a process of a run shows its syncer: of its own identity, or the token that all share."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from pathlib import Path

from gruppetto.files import content_of
from gruppetto.home import at_home
from gruppetto.launch.ask import read_token
from gruppetto.report.rundir import RUN
from gruppetto.runtime.security.fresh import client_context
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.places import CA, Papers, any_papers, papers_of

__all__ = ["learner_papers", "looker_papers", "looker_papers_in"]


def learner_papers(certs: str | None, token_file: str | None, name: str) -> Papers:
    """Of learner ``name``. Raises :class:`gruppetto.errors.SettingError`."""
    if certs is None:
        return Papers(token=read_token(token_file))
    return papers_of(at_home(certs), Identity(role=Role.LEARNER, name=name))


def looker_papers(certs: str | None, token_file: str | None) -> Papers:
    """Of whoever asks how the run stands: an operator's if there are any, else a viewer's. A token file goes with the
    authority in ``certs``. Raises :class:`gruppetto.errors.SettingError`."""
    if certs is None:
        return Papers(token=read_token(token_file))
    directory = at_home(certs)
    if token_file is None:
        return any_papers(directory)
    return Papers(token=read_token(token_file), tls=client_context(directory / CA), ca=directory / CA, personal=True)


def looker_papers_in(directory: Path, certs: str | None, token_file: str | None) -> Papers:
    """The same for a run directory of this machine, or a state directory: its settings say where its papers lie."""
    for settings in (directory / RUN, directory / "syncer" / RUN):
        if certs is None and token_file is None:
            with suppress(OSError, ValueError, AttributeError, RecursionError):  # others judge what its settings are
                place = tomllib.loads(content_of(settings).decode()).get("syncer", {})
                certs, token_file = place.get("certs"), place.get("token_file")
    return looker_papers(certs, token_file)
