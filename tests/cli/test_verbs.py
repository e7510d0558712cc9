"""Every verb: what it prints where, how it fails, what it never does."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gruppetto.cli.__main__ import VERBS, main
from gruppetto.errors import StateError
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.events import Tick
from gruppetto.protocol.units import Epoch
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.schema import core_header


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    header = core_header(ProtocolSetting(), run_id="r", layout_hash="l", epoch=Epoch(1))
    with TraceWriter(tmp_path / "trace.jsonl", header) as trace:
        for t in range(3):
            trace.event(float(t), "syncer", Tick())
    return tmp_path / "trace.jsonl"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {verb} " in said for verb in VERBS)
    assert main([]) == 2


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert f"gruppetto {verb}" in said
    assert "--help" in said
    plain = re.sub(r"[\s│]+", " ", said)
    assert not [
        word for word in ("(default: )", "(default: None)", "(default: False)", "(default: '')") if word in plain
    ]
    assert not re.search(r"--[\w-]+ \S*\b(STR|INT|FLOAT)\b", plain), "names of types say nothing to whoever runs it"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "'trian' is no verb; did you mean train?"),
        (["xyz"], "'xyz' is no verb; see gruppetto --help"),
        (["train", "--lerners", "3"], "--lerners is not understood; did you mean --learners?"),
        (["train", "--lerners=3"], "--lerners=3 is not understood; did you mean --learners?"),
        (["train", "--dry"], "--dry is not understood; see gruppetto train --help"),  # nothing is near but the dashes
        (["fuzz", "--seconds", "long"], "--seconds: a number is needed; see gruppetto fuzz --help"),
        (["train", "--virtual", "--mode", "diloco"], "--mode: is diloco; use decoupled: gruppetto train has rivals on"),
        (["train", "--learners"], "Missing value for argument '--learners'"),
        (["train", "--learners", "few"], "--learners: is 'few'; use a whole number"),
        (["train", "--learners", "0"], "--learners: num_learners is 0; use 1 or more"),
        (["train", "--mode", "solo"], "--mode: is 'solo'; use one of decoupled, single"),
        (["train", "--set", "run.rounds"], "--set: 'run.rounds' has no value; use TABLE.KEY=VALUE"),
        (["train", "--set", "run.ruonds=3"], "run.ruonds is unknown; did you mean run.rounds?"),
        (["train", "nothing.toml"], "nothing.toml: cannot be read (No such file or directory); name a RUN.toml"),
        (["chaos", "nothing.toml"], "cannot be read (No such file or directory); name a PLAN.toml or a RUN.toml"),
        (["train", "a.toml", "b.toml"], "2 arguments where one RUN.toml is needed"),
        (["train", "--preset", "dmeo"], "dmeo is unknown; did you mean demo?"),
        (["demo", "--rounds", "-1"], "command line: run.rounds: rounds is -1; use 1 or more"),
        (["learner", "--name", "a", "--syncer", "u"], "0 arguments where one RUN.toml is needed"),
        (["learner", "run.toml", "--name", "a"], "run.toml: cannot be read"),
        (["learner", "run.toml", "--syncer", "a:1"], "--name is missing"),
        (["syncer", "--listen", "7171"], "gruppetto: --listen: is '7171'; use HOST:PORT"),
        (["syncer", "--token-file", "no-such-file"], "syncer.token_file (no-such-file): cannot be read"),
        (["status"], "0 arguments where one URL or RUNDIR is needed"),
        (["status", "http://127.0.0.1:9"], "http://127.0.0.1:9: nobody answers; start the syncer"),
        (
            ["status", "mistyped"],
            "mistyped: no such directory; name a run directory, or an address as http://HOST:PORT",
        ),
        (["dashboard", "mistyped"], "mistyped: no such directory; name a run directory, or an address"),
        (["status", "ftp://x"], "'ftp://x' is not an address"),
        (["chaos"], "0 arguments where one PLAN.toml is needed"),
        (["chaos", "no-such-plan"], "no-such-plan: cannot be read (No such file or directory)"),
        (["checkpoint"], "0 arguments where one URL or RUNDIR is needed"),
        (["checkpoint", "."], ".: no run goes on in it; name the directory or the address of one"),
        (["resume", "no-such-run"], "no-such-run: is neither a run directory nor a checkpoint of one"),
        (["resume"], "0 arguments where one RUNDIR or CHECKPOINT is needed"),
        (["syncer", "--state", "s", "--from", "nowhere"], "nowhere: is no complete checkpoint"),
        (["report", "no-such-run"], "no-such-run: has neither trace.jsonl nor train.jsonl"),
        (["replay", "no-such-tape"], "no-such-tape: cannot be read"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_2(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert says in said.err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    arguments = ["train", "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    with pytest.raises(StateError, match="is not empty, and not a run"):
        main([*arguments, "--debug"])


def test_train_writes_over_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stranger, settings, file = tmp_path / "stranger", tmp_path / "settings", tmp_path / "file"
    for directory, mark in ((stranger, "thesis.tex"), (settings, "run.toml")):
        directory.mkdir()
        (directory / mark).write_text("precious", encoding="utf-8")
    file.touch()
    for out, more, says in (
        (stranger, [], "is not empty, and not a run; name another directory"),
        (stranger, ["--overwrite"], "is not empty, and not a run; name another directory"),
        # A lone run.toml is somebody's settings.
        (settings, ["--overwrite"], "is not empty, and not a run; name another directory"),
        (file, [], "cannot be made"),
    ):
        assert main(["train", "--out", str(out), *more]) == 2
        assert says in capsys.readouterr().err
    assert (stranger / "thesis.tex").read_text(encoding="utf-8") == "precious"
    assert (settings / "run.toml").read_text(encoding="utf-8") == "precious"


def test_overwrite_needs_a_corpus_and_keeps_what_the_command_needs(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, recorded = tape.parent, tape.read_bytes()
    (run / "RUN.toml").touch()
    for arguments, says in (
        ([], "holds a run already"),
        (["--overwrite", "--cache", str(run.parent / "c"), "--set", "data.corpus=text:no-such-file"], "no-such-file"),
        ([str(run / "RUN.toml"), "--overwrite"], "RUN.toml, which is needed; move it"),
        (["--overwrite", "--compare", str(run)], "which is needed; move it"),
        (["--overwrite", "--compare", str(run / "none")], "holds no run"),
    ):
        assert main(["train", *arguments, "--out", str(run)]) == 2
        assert says in capsys.readouterr().err
    assert tape.read_bytes() == recorded


def test_a_start_that_fails_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = ["train", "--out", str(run), "--cache", str(tmp_path / "c"), "--set", "data.corpus=text:no-such-file"]
    for _ in range(2):
        assert main(arguments) == 2
        assert "no-such-file" in capsys.readouterr().err
        assert [entry.name for entry in run.iterdir()] == [".lock"]


@pytest.mark.parametrize("arguments", [["status", "\udcff"], ["train", "--out", "n\udcffx"]])
def test_names_that_are_no_text_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "is not UTF-8; use another name" in capsys.readouterr().err


def test_the_machine_s_refusals_are_one_line(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tape.parent / "report.html").mkdir()
    assert main(["report", str(tape.parent)]) == 1
    said = capsys.readouterr().err
    assert (said.count("\n"), "report.html" in said, "directory" in said) == (1, True, True)
    with pytest.raises(IsADirectoryError):
        main(["report", str(tape.parent), "--debug"])


def test_status_of_a_run_that_was_killed_comes_from_its_trace(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        '{"t":3.0,"who":"syncer","in":"Progress","data":{"learner":"a","clock":9,"steps":8,"step_s":0.5}}',
        '{"t":3.0,"who":"syncer","out":"RoundClosed","data":{"round":6,"participants":["a"]}}',
        '{"t":3.0,"who":"syncer","in":"Published","data":{"round":6}}',
        '{"t":3.0,"who":"syncer","in":"Publ',
    )
    with tape.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines))
    processes = {"learners": {"a": {"pid": 7, "state": "running"}}}
    (tape.parent / "processes.json").write_text(json.dumps(processes), encoding="utf-8")
    assert main(["status", str(tape.parent), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["round"], status["phase"]) == (6, "stopped")
    learner = {"pid": 7, "state": "gone", "clock": 9, "steps": 8, "step_s": 0.5, "last_merged_round": 6}
    assert status["learners"].keys() == {"a"} and status["learners"]["a"].items() >= learner.items()


@pytest.mark.parametrize("arguments", [["version"], ["replay", "TAPE"], ["report", "DIR"], ["status", "DIR"]])
def test_json_is_one_object_on_stdout_and_nothing_else(
    arguments: list[str], tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tape.parent / "processes.json").write_text(
        json.dumps({"learners": {"a": {"pid": 7, "state": "killed (SIGKILL)"}}}), encoding="utf-8"
    )
    given = [{"TAPE": str(tape), "DIR": str(tape.parent)}.get(argument, argument) for argument in arguments]
    assert main([*given, "--json"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert isinstance(json.loads(said), dict)


def test_status_of_a_run_that_has_ended(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tape.parent / "processes.json").write_text(
        json.dumps({"learners": {"a": {"pid": 7, "state": "killed (SIGKILL)"}}}), encoding="utf-8"
    )
    assert main(["status", str(tape.parent), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["round"] == 0
    learner = status["learners"]["a"]
    assert (learner["pid"], learner["state"], learner["clock"]) == (7, "killed (SIGKILL)", 0)
    assert learner["last_merged_round"] is None
    empty = tape.parent / "empty"
    empty.mkdir()
    assert main(["status", str(empty)]) == 2


def test_status_after_a_report_still_says_how_far_each_learner_was(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report has no clocks; the trace has."""
    with tape.open("a", encoding="utf-8") as file:
        closed = {"round": 3, "why": "w", "participants": ["a"], "live": 1, "grace_spent_s": 0.0}
        file.write(json.dumps({"t": 3.0, "who": "syncer", "out": "RoundClosed", "data": closed}) + "\n")
    report = {"mode": "decoupled", "rounds": 3, "learners": {"a": {"steps": 9, "step_s": 0.5}}}
    (tape.parent / "report.json").write_text(json.dumps(report), encoding="utf-8")
    assert main(["status", str(tape.parent), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["round"], status["phase"]) == (3, "ended")
    assert (status["learners"]["a"]["steps"], status["learners"]["a"]["last_merged_round"]) == (9, 3)


def test_replay_takes_a_run_directory_and_fails_when_decisions_differ(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tape.parent)]) == 0
    assert "3 events led to the same 0 decisions" in capsys.readouterr().out
    with tape.open("a", encoding="utf-8") as file:
        file.write('{"t":3.0,"who":"syncer","out":"Alarm","data":{"kind":"zero-update","text":"!"}}\n')
    assert main(["replay", str(tape), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] is False
    assert found["first_difference"].startswith("line 5, t = 3.0: recorded Alarm")


def test_replay_says_that_a_rival_has_no_protocol(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rival, log = tmp_path / "single", tmp_path / "single" / "train.jsonl"
    rival.mkdir()
    log.touch()
    for named in (rival, log):
        assert main(["replay", str(named)]) == 2
        assert f"{named}: is of a rival, which has no protocol to replay; name a dec" in capsys.readouterr().err
    tape.rename(rival / "trace.jsonl")  # what has a trace is replayed, whatever lies beside it
    assert main(["replay", str(rival)]) == 0


def test_starting_is_cheap() -> None:
    code = (
        "import sys; from gruppetto.cli.__main__ import main; main(['--help']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'tyro', 'rich', 'aiohttp', 'msgspec')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_replay_status_report_and_syncer_need_no_torch() -> None:
    code = (
        "import sys, gruppetto.cli.replay, gruppetto.cli.status, gruppetto.cli.report, gruppetto.cli.syncer;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_letters_that_an_encoding_has_not_are_written_as_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    page = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(page, encoding="ascii"))
    assert main(["experiment", "--list"]) == 0
    sys.stdout.flush()
    assert rb"1/\u221aM" in page.getvalue()


@pytest.mark.parametrize(("package", "extra"), [("torch", "train"), ("transformers.utils", "train")])
def test_a_package_that_is_not_installed_is_one_line(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(arguments: list[str]) -> int:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("gruppetto.cli.experiment.main", without)
    assert main(["experiment", "merge"]) == 2
    told = capsys.readouterr().err
    assert f"pip install 'gruppetto[{extra}]'" in told and told.count("\n") == 1
    monkeypatch.setattr("gruppetto.cli.experiment.main", lambda arguments: __import__("gruppetto.nowhere"))
    with pytest.raises(ModuleNotFoundError):  # ours: a mistake, to be seen whole
        main(["experiment", "merge"])
