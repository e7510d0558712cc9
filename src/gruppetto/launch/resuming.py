"""From what a run has left behind to a run that can go on: its syncer's part, its learners' parts, its trace.

What came after the cut is kept, but out of the way: the trace in ``trace-before-resume-N.jsonl``, the syncer's state in
``syncer/before-resume-N/``, the learners' own checkpoints in ``learners/NAME/checkpoints-before-resume-N/``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gruppetto.config import RunConfig, load_run
from gruppetto.config.load import read_whole_toml
from gruppetto.errors import StateError
from gruppetto.protocol.units import Epoch
from gruppetto.report.rundir import EVALUATION, RUN, TRACE
from gruppetto.runtime.manifest import MANIFEST, Manifest, complete_checkpoints, read_manifest
from gruppetto.runtime.run_checkpoint import EPOCHS_APART, install
from gruppetto.runtime.store import Store
from gruppetto.trace.log import Header, Record, read_trace

__all__ = ["Resumption", "find", "make_ready", "part_of"]

MOST_NUMBERED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What there is to go on from."""

    run: Path
    """The run directory."""
    config: RunConfig
    checkpoint: Path | None
    """None: the syncer's durable state, and learners that recover by themselves."""
    manifest: Manifest | None
    round: int
    """From which the run goes on."""
    newest_round: int
    """That the run had reached; what lies between is made anew."""

    @property
    def finished(self) -> bool:
        return self.round >= self.config.rounds

    @property
    def state(self) -> Path:
        return self.run / self.config.syncer.state

    @property
    def parts(self) -> dict[str, Path]:
        """Of which learner there is a part, and where."""
        return {} if self.manifest is None else {part.learner: Path(part.where) for part in self.manifest.parts}


def find(source: Path) -> Resumption:
    """What ``source`` can be resumed from: a run directory (its newest checkpoint), or one checkpoint of such a run.

    Raises :class:`StateError` if there is nothing.
    """
    checkpoint = source if (source / MANIFEST).is_file() else None
    run = source if checkpoint is None else _run_of(checkpoint)
    if not (run / RUN).is_file():
        raise StateError(
            "is neither a run directory nor a checkpoint of one", where=str(source), fix=f"name one with a {RUN}"
        )
    config = load_run(run / RUN, content=read_whole_toml(run / RUN))
    if config.mode != "decoupled":
        raise StateError(f"is a {config.mode} run", where=str(run), fix="start it again; only decoupled runs resume")
    state = run / config.syncer.state
    with Store(state, identity=None) as store:
        newest_round = store.state.round if store.state is not None else -1
    if checkpoint is None and newest_round < config.rounds:
        complete = complete_checkpoints(state)
        checkpoint = complete[-1][0] if complete else None
    if checkpoint is None and newest_round < 0:
        raise StateError("has no weights yet, so there is nothing to resume", where=str(run), fix="start it again")
    manifest = None if checkpoint is None else read_manifest(checkpoint)
    return Resumption(
        run=run,
        config=config,
        checkpoint=checkpoint,
        manifest=manifest,
        round=newest_round if manifest is None else manifest.round,
        newest_round=newest_round,
    )


def make_ready(found: Resumption, directory: Path) -> None:
    """Make ``directory`` (the run's own, or a new one) the place from which the run goes on. Raises StateError."""
    for name, part in found.parts.items():
        if not part.is_dir():
            raise StateError(
                f"the part of {name} is not at {part}", where=str(found.checkpoint), fix="bring it there, or resume "
                "each process on its own machine with --from"
            )  # fmt: skip
    state = directory / found.config.syncer.state
    if found.checkpoint is not None:
        install(found.checkpoint, state)
        _put_aside_learners(directory)
    elif directory != found.run:
        with Store(found.state, identity=None) as store:
            assert store.state is not None
            known = replace(store.state, reserve=store.reserve)
            store.copy_to(state, known, Epoch(store.newest_epoch + EPOCHS_APART))
    mark = found.manifest.mark if found.manifest is not None else None
    _cut_trace(found, directory, mark)


def part_of(checkpoint: Path, learner: str) -> Path:
    """Where the part of ``learner`` lies: ``checkpoint`` is the syncer's directory, or that part itself."""
    if not (checkpoint / MANIFEST).is_file():
        return checkpoint
    manifest = read_manifest(checkpoint)
    for part in manifest.parts:
        if part.learner == learner:
            return Path(part.where)
    why = dict(manifest.left_out).get(learner)  # type: ignore[call-overload]
    raise StateError(
        f"has no part of {learner}" + (f": {why}" if why else ""),
        where=str(checkpoint),
        fix="start it without --from: it takes the weights from the syncer",
    )


def _put_aside_learners(directory: Path) -> None:
    """What learners have saved of themselves since the cut is of rounds that are made anew."""
    for place in sorted(directory.glob("learners/*/checkpoints")):
        names = (place.with_name(f"checkpoints-before-resume-{n}") for n in range(1, MOST_NUMBERED))
        place.rename(next(name for name in names if not name.exists()))


def _run_of(checkpoint: Path) -> Path:
    """RUNDIR/syncer/checkpoints/NAME."""
    above = [place for place in checkpoint.resolve().parents if (place / RUN).is_file() and (place / TRACE).is_file()]
    if not above:
        raise StateError(
            "does not lie in a run directory",
            where=str(checkpoint),
            fix="start `gruppetto syncer` and each `gruppetto learner` with --from",
        )
    return above[0]


def _cut_trace(found: Resumption, directory: Path, mark: str | None) -> None:
    """The trace up to the cut, with the evaluations of all rounds up to it."""
    old, new = found.run / TRACE, directory / TRACE
    if old.is_file():
        lines = _lines_up_to_the_cut(old, mark, found.round)
        _replace(old, new, lines)
    evaluations = found.run / EVALUATION
    if evaluations.is_file():
        kept = [raw for line, raw in _raw_lines(evaluations) if _is_kept(line, found.round)]
        _replace(evaluations, directory / EVALUATION, kept)


def _replace(old: Path, new: Path, lines: list[bytes]) -> None:
    """Write ``lines`` of ``old`` as ``new``; where that is the same file, what is left out is kept beside it."""
    if old == new and _leaves_something_out(old, lines):
        names = (old.with_name(f"{old.stem}-before-resume-{n}{old.suffix}") for n in range(1, MOST_NUMBERED))
        shutil.copyfile(old, next(name for name in names if not name.exists()))
    temporary = new.with_name(new.name + ".tmp")
    temporary.write_bytes(b"".join(lines))
    temporary.replace(new)


def _leaves_something_out(old: Path, lines: Iterable[bytes]) -> bool:
    return sum(map(len, lines)) < old.stat().st_size


def _lines_up_to_the_cut(trace: Path, mark: str | None, round: int) -> list[bytes]:
    """With those evaluations behind it that are of rounds up to it: they are written late."""
    kept: list[bytes] = []
    behind = False
    for line, raw in _raw_lines(trace):
        if not behind or (isinstance(line, Record) and line.name == "evaluation" and _is_kept(line, round)):
            kept.append(raw)
        behind = behind or (isinstance(line, Record) and _is_cut(line, mark))
    return kept


def _is_cut(record: Record, mark: str | None) -> bool:
    return (record.kind, record.name) == ("out", "Checkpoint") and record.data.get("mark") == mark


def _is_kept(line: Header | Record, round: int) -> bool:
    return isinstance(line, Header) or line.data.get("round", 0) <= round


def _raw_lines(path: Path) -> Iterator[tuple[Header | Record, bytes]]:
    """Each line of a trace, read and as it stands; one that was torn by a crash is passed over."""
    with path.open("rb") as file:
        for line in read_trace(path):
            yield line, file.readline()
