"""A RUN.toml in, a run out; what cannot be is refused in one line with source, path, value and fix."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gruppetto.config import PRESETS, RunConfig, load_run, to_toml
from gruppetto.config.load import TABLES
from gruppetto.config.run import CodecChoice
from gruppetto.errors import SettingError


def read(tmp_path: Path, text: str, **more: object) -> RunConfig:
    file = tmp_path / "RUN.toml"
    file.write_text(text, encoding="utf-8")
    return load_run(file, **more)  # type: ignore[arg-type]


CHANGED: dict[str, object] = {
    "run.preset": "closest",
    "run.mode": "diloco",
    "run.num_learners": 3,
    "run.num_fragments": 7,
    "run.sync_period": 12,
    "run.overlap_steps": 1,
    "run.min_quorum": 2,
    "run.rounds_in_flight": 3,
    "run.rounds": 77,
    "run.grace": False,
    "run.grace_factor": 0.5,
    "run.ema_factor": 0.2,
    "run.when_short": "degrade",
    "run.stale": "accept",
    "run.snapshot_window": 3,
    "run.apply": "carry",
    "run.blend_alpha": 0.25,
    "run.norm_gate": "reject",
    "run.norm_factor": 5.0,
    "run.weight_cap": 4.0,
    "run.liveness_s": 3.0,
    "run.start_learners": 2,
    "run.start_timeout_s": 5.0,
    "run.checkpoint_timeout_s": 5.0,
    "run.num_slots": 19,
    "run.durability": "interval",
    "run.durability_rounds": 7,
    "run.departed_named": 9,
    "outer.preset": "finetune",
    "outer.optimizer": "sgd",
    "outer.lr": 0.3,
    "outer.momentum": 0.1,
    "outer.first_share": 0.5,
    "outer.final_share": 1.5,
    "outer.average_share": 0.1,
    "merge.rules": [["norm", "mean"]],
    "fragments.how": "layer",
    "codec.uplink": "fp32",
    "codec.downlink": "bf16",
    "syncer.listen": "127.0.0.1:7272",
    "syncer.state": "elsewhere",
    "syncer.token_file": "token",
    "syncer.tls_cert": "cert.pem",
    "syncer.tls_key": "key.pem",
    "syncer.allow_plaintext": True,
    "syncer.certs": "certs",
    "syncer.allow_shared_token": True,
    "launch.restart": False,
    "launch.max_restarts": 3,
    "launch.standby": True,
    "launch.syncer_resources": [["disk", 1.0]],
    "launch.standby_resources": [["disk", 1.0]],
    "syncer.lease_s": 3.0,
    "syncer.snapshots_kept": 5,
    "syncer.checkpoint_every_s": 3600.0,
    "syncer.checkpoints_kept": 4,
    "syncer.max_bytes_per_s": 1e8,
    "syncer.mailbox": "s3://lab/tour",
    "syncer.shared_memory": False,
    "syncer.shards": 2,
    "syncer.urls": ["https://host-a:7171", "https://host-b:7171"],
    "train.batch_size": 4,
    "train.eval_every_rounds": 10,
    "train.eval_windows": 16,
    "train.log_every_rounds": 3,
    "train.seed": 5,
    "train.checkpoint_every_rounds": 0,
    "train.threads": 2,
    "model.preset": "small",
    "model.architecture": "hf:qwen3",
    "model.dim": 32,
    "model.layers": 2,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.ffn_dim": 64,
    "model.context": 32,
    "model.tie_embeddings": False,
    "model.rope_theta": 500.0,
    "model.seed": 9,
    "data.corpus": "text:book.txt",
    "data.tokenizer": "bpe:512",
    "inner.learning_rate": 1e-4,
    "inner.warmup_rounds": 5,
    "inner.final_share": 0.2,
    "inner.beta1": 0.8,
    "inner.beta2": 0.95,
    "inner.eps": 1e-6,
    "inner.weight_decay": 0.0,
    "inner.clip_norm": 0.5,
}
WITH = {"syncer.tls_cert": {"syncer.tls_key": "key.pem"}, "syncer.tls_key": {"syncer.tls_cert": "cert.pem"}}
BASE = {"run.num_learners": 4, "run.mode": "decoupled"}


@pytest.mark.parametrize("path", sorted({f"{t}.{key}" for t, keys in TABLES.items() for key in keys} - {"data.slots"}))
def test_every_setting_changes_the_run(path: str) -> None:
    plain = load_run(overrides=BASE)
    changed = load_run(overrides={**BASE, **WITH.get(path, {}), path: CHANGED[path]})
    assert changed != plain
    table, key = path.split(".")
    owner = {
        "run": changed if key == "mode" else changed.protocol,
        "train": changed.train,
        "model": changed.train.model,
        "data": changed.train.data,
        "inner": changed.train.inner,
        "learner": changed.learners[0],
    }.get(table) or getattr(changed, table)
    if path == "run.preset":
        assert changed.outer.preset == "rising"
    elif path == "model.preset":
        assert changed.train.model.dim == 128
    else:
        assert getattr(owner, key) == in_tuples(CHANGED[path])


def in_tuples(value: object) -> object:
    return tuple(map(in_tuples, value)) if isinstance(value, list) else value


def test_off_is_written_down_where_the_default_is_on(tmp_path: Path) -> None:
    run = load_run(overrides={"run.weight_cap": "none"})
    assert run.protocol.weight_cap is None
    assert 'weight_cap = "none"' in to_toml(run)
    assert read(tmp_path, to_toml(run)).protocol.weight_cap is None


def test_the_order_is_defaults_preset_file_command_line(tmp_path: Path) -> None:
    assert load_run().protocol.sync_period == 24
    assert load_run(preset="demo").protocol.sync_period == 8
    assert read(tmp_path, "[run]\nsync_period = 9", preset="demo").protocol.sync_period == 9
    flagged = read(tmp_path, "[run]\nsync_period = 9", preset="demo", overrides={"run.sync_period": "10"})
    assert flagged.protocol.sync_period == 10
    assert flagged.protocol.rounds == load_run(preset="demo").protocol.rounds


def test_a_file_may_name_the_preset_that_lies_below_it(tmp_path: Path) -> None:
    text = '[run]\npreset = "closest"\nsync_period = 9\n[codec]\nuplink = "int8"'
    run = read(tmp_path, text)
    assert (run.protocol.sync_period, run.protocol.num_fragments, run.protocol.apply) == (9, 8, "carry")
    assert (run.outer.preset, run.codec) == ("rising", CodecChoice(uplink="int8", downlink="delta-int4"))
    assert read(tmp_path, to_toml(run)) == run
    # The last one who names a preset decides, and what is said beside it stays.
    assert len(read(tmp_path, text, overrides={"run.preset": "demo"}).learners) == 4
    assert len(read(tmp_path, text, preset="demo").learners) == 4
    with pytest.raises(SettingError, match=r"command line: run\.preset: preset demo holds already"):
        read(tmp_path, text, preset="demo", overrides={"run.preset": "closest"})
    with pytest.raises(SettingError, match=r"RUN\.toml: run\.preset: clsest is unknown; did you mean closest\?"):
        read(tmp_path, '[run]\npreset = "clsest"')
    with pytest.raises(SettingError, match=r"RUN\.toml: run\.preset: is 3; use a text"):
        read(tmp_path, "[run]\npreset = 3")


def test_learners_are_counted_named_and_filled_up(tmp_path: Path) -> None:
    run = read(tmp_path, '[[learner]]\nname = "a"\n[[learner]]\nname = "learner-0"\nslowdown = 2')
    assert [entry.name for entry in run.learners] == ["a", "learner-0"]
    assert run.protocol.num_learners == 2
    more = read(tmp_path, '[[learner]]\nname = "a"\n[[learner]]\nname = "learner-0"', overrides={"run.num_learners": 4})
    assert [entry.name for entry in more.learners] == ["a", "learner-0", "learner-1", "learner-2"]
    assert [entry.name for entry in load_run(overrides={"run.num_learners": 2}).learners] == ["learner-0", "learner-1"]


def test_learners_of_a_local_run_start_together_unless_told_otherwise() -> None:
    assert load_run(overrides={"run.num_learners": 3}).protocol.start_learners == 3
    assert load_run(overrides={"run.num_learners": 3, "run.start_learners": 1}).protocol.start_learners == 1
    # A service takes whoever comes.
    service = load_run(overrides={"run.num_learners": 3}, endless=True).protocol
    assert (service.start_learners, service.rounds) == (None, None)


def test_data_slots_follow_the_syncer() -> None:
    assert load_run(overrides={"run.num_learners": 30}).train.data.slots == 60
    assert load_run(overrides={"run.num_slots": 18}).train.data.slots == 18
    assert load_run(overrides={"data.slots": 16}).train.data.slots == 16


def test_a_model_preset_may_be_changed_in_parts() -> None:
    model = load_run(overrides={"model.preset": "small", "model.layers": 2}).train.model
    assert (model.dim, model.layers) == (128, 2)


def test_outer_values_change_the_preset_that_auto_picks() -> None:
    assert load_run(overrides={"run.rounds": 600}).resolved_outer()[0].lr == 0.7
    assert load_run(overrides={"run.rounds": 48_000}).resolved_outer()[0].lr == 0.4
    changed, _ = load_run(overrides={"run.rounds": 48_000, "outer.momentum": 0.8}).resolved_outer()
    assert (changed.lr, changed.momentum) == (0.4, 0.8)
    assert load_run(overrides={"outer.optimizer": "sgd"}).resolved_outer()[0].momentum == 0.0


@pytest.mark.parametrize("name", [None, *PRESETS])
def test_the_resolved_file_reads_back_to_the_same_run(tmp_path: Path, name: str | None) -> None:
    overrides = {path: value for path, value in CHANGED.items() if name is None}
    overrides["outer.preset"], overrides["outer.optimizer"] = "paper", "nesterov"
    overrides.pop("syncer.checkpoint_every_s", None)  # not with shards
    overrides["data.corpus"] = 'text:odd "name"\\ \x7f é.txt'
    run = load_run(preset=name, overrides=overrides)
    assert read(tmp_path, to_toml(run)) == run


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run]\nnum_learners = 2\nmin_quorum = 3", r"run.min_quorum: min_quorum is 3 but num_learners is 2; use 2"),
        ("rounds = 3\n[run]\nmin_quorum = 1", "rounds stands in no table; write it below \\[run\\]"),
        ("rouds = 3", "rouds is unknown"),
        ("[run]\nnum_fragments = 0", "run.num_fragments: num_fragments is 0; use 1 or more"),
        ("[run]\nsync_period = 2", "run.overlap_steps: overlap_steps is 2 but sync_period is 2; use less"),
        ("[run]\nsync_period = 0", "run.sync_period: sync_period is 0; use 1 or more"),
        ("[run]\nrounds = -5", "run.rounds: rounds is -5; use 1 or more"),
        ("[run]\nrounds = 2.5", "run.rounds: is 2.5; use a whole number"),
        ('[run]\nrounds = "none"', "run.rounds: a run with learners needs an end"),
        ("[run]\nrounds = true", "run.rounds: is True; use a whole number"),
        ('[run]\ngrace = "yes"', "run.grace: is 'yes'; use true or false"),
        ('[run]\nwhen_short = "stop"', "run.when_short: is 'stop'; use one of wait, degrade"),
        ('[run]\napply = "glue"', "run.apply: is 'glue'; use one of overwrite, blend, carry"),
        ("[run]\nliveness_s = -1", "run.liveness_s: liveness_s is -1"),
        ("[run]\nliveness_s = inf", "run.liveness_s: liveness_s is inf; use a finite number"),
        ('[run]\nmode = "solo"', "run.mode: is 'solo'; use one of decoupled, single, data-parallel, diloco"),
        ("[run]\nnum_slots = 2\nnum_learners = 3", "run.num_slots: num_slots is 2 but num_learners is 3"),
        ("[run]\nsync_periode = 3", "run.sync_periode is unknown; did you mean run.sync_period?"),
        ("[runs]\nrounds = 3", "runs is unknown; did you mean run?"),
        ("[zzz]", "zzz is unknown; use one of codec, data"),
        ("run = 3", "run: is 3; write a table"),
        ("[outer]\nlr = -0.1", "outer.lr: lr is -0.1; use more than 0"),
        ('[outer]\npreset = "best"', "outer.preset: is 'best'; use one of auto, finetune, paper, rising, short"),
        ('[outer]\noptimizer = "lion"', "outer.optimizer: unknown optimizer 'lion'"),
        ('[merge]\nrules = [["(", "rda"]]', r"merge.rules: merge override 0 \('\(': 'rda'\): not a regular expression"),
        ('[merge]\nrules = [["a", "sum"]]', "unknown merge rule 'sum'"),
        ('[merge]\nrules = [["a"]]', r"merge.rules\[0\]: has 1 entries; use 2"),
        ("[merge]\nrules = 3", "merge.rules: is 3; use a list"),
        ('[fragments]\nhow = "slice"', "fragments.how: is 'slice'; use one of balanced"),
        ('[codec]\nuplink = "zip"', "codec.uplink: is 'zip'; use one of bf16, fp32, fp4-e3m0, int4, int8"),
        (
            '[codec]\ndownlink = "int4"',
            "codec.downlink: is 'int4', which is for differences; use one of bf16, delta, delta-int4, fp32",
        ),
        ('[syncer]\nlisten = "7171"', "syncer.listen: is '7171'; use HOST:PORT"),
        ('[syncer]\nmailbox = "s3://lab"', "syncer.mailbox: 's3://lab' is not a mailbox; use s3://BUCKET/PREFIX"),
        ("[syncer]\nmax_bytes_per_s = 9", "syncer.max_bytes_per_s: is 9.0; use 65536 or more"),
        ('[syncer]\nlisten = "localhost:99999"', "syncer.listen: is 'localhost:99999'; use HOST:PORT"),
        ("[train]\nbatch_size = 0", "train.batch_size: is 0; use 1 or more"),
        ("[train]\nseed = -1", "train.seed: is -1; use 0 to"),
        ('[model]\npreset = "huge"', "no preset is called 'huge'; use one of tiny, small, base"),
        ('[model]\narchitecture = "gpt"', "model.architecture: 'gpt' is unknown; use llama or hf:NAME"),
        ("[model]\ndim = 30", "model.heads: dim 30 does not give 4 heads of even width"),
        ('[model]\ndim = "64"', "model.dim: is '64'; use a whole number"),
        ('[data]\ncorpus = "books"', "data.corpus: 'books' is unknown; use python-stdlib"),
        ("[data]\nslots = 3", "data.slots: data.slots is 3, but the syncer leases 16"),
        ("[inner]\nlearning_rate = -1e-3", "inner.learning_rate: is -0.001; use a number above 0"),
        ('[[learner]]\nname = "a"\nslowdown = 0.5', "learner.slowdown: is 0.5; use 1 or more"),
        ('[[learner]]\nname = "a"\nmin_step_s = -1', "learner.min_step_s: is -1.0; use seconds, 0 to 86400"),
        ('[[learner]]\nname = "../a"', "learner.name: is '../a'; use 1 to 128 letters"),
        ('[[learner]]\nname = "a"\n[[learner]]\nname = "a"', "two learners are called 'a'"),
        ("[[learner]]\nslowdown = 2", "learner.name: is missing"),
        ('[[learner]]\nname = "a"\nspeed = 2', "learner.speed is unknown"),
        ("learner = 3", r"learner: is 3; write \[\[learner\]\]"),
        (
            '[run]\nnum_learners = 1\n[[learner]]\nname = "a"\n[[learner]]\nname = "b"',
            r"run.num_learners: 2 \[\[learner\]\] entries, but num_learners is 1",
        ),
        ("[run\n", "is not TOML"),
        ("[outer]\nlr = 1" + "0" * 400, "outer.lr: is a number of 1329 bits; use a number below"),
        ("[run]\nrounds = 1" + "0" * 400, "run.rounds: is a number of 1329 bits; use a number below"),
        ("[run]\nrounds = 1e300", "run.rounds: is 1e\\+300; use a whole number"),
        ("[run]\nrounds = 0x" + "f" * 9000, "run.rounds: is a number of 36000 bits"),
        ("[run]\nmode = [0x" + "f" * 9000 + "]", "run.mode: is a list too long to print; use one of"),
        ("[run]\nrounds = 1" + "0" * 5000, "is not TOML"),
        ("a = " + "[" * 5000, "nests too many brackets"),
        ('[syncer]\nstate = "a\\u0000b"', "syncer.state: is .*; leave out the NUL character"),
        ("[model]\ndim = 1000000000000", "model.dim: is 1000000000000; use at most 131072"),
        ("[model]\ndim = 131072\nlayers = 4096", "model.dim: these sizes make .*e.* parameters; use at most 1e"),
        ("[model]\ncontext = 1000000000000", "model.context: is 1000000000000; use at most"),
        ("[train]\nbatch_size = 1000000000000", "train.batch_size: is 1000000000000; use at most"),
        (
            "[train]\nbatch_size = 100000000",
            "train.batch_size: 100000000 windows of 64 tokens .*; use at most 33554431",
        ),
        ("[train]\nthreads = 1000000", "train.threads: is 1000000; use at most 1024"),
        ('[[learner]]\nname = "a"\nslowdown = 1e300', "learner.slowdown: is 1e\\+300; use 1 or more, up to 1e"),
        ('[[learner]]\nname = ".."', "learner.name: is '..'; use 1 to 128 letters"),
        ('[[learner]]\nname = "."', "learner.name: is '.'; use 1 to 128 letters"),
        ('[[learner]]\nname = "-"', "learner.name: is '-'; use 1 to 128 letters"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "RUN.toml") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"run.min_quorum": "3"}, "command line: run.min_quorum: min_quorum is 3"),
        ({"rounds": 3}, "command line: 'rounds' is no setting; use TABLE.KEY"),
        ({"run.": 3}, "'run.' is no setting"),
        ({"run.rounds": "soon"}, "command line: run.rounds: is 'soon'; use a whole number"),
        ({"run.rounds": "1" + "0" * 5000}, r"command line: run.rounds: is '1000*\.\.\.; use a whole number"),
        ({"run.rounds": "1" + ",000" * 2000}, r"command line: run.rounds: is '1,000.*\.\.\.; use a whole number"),
        ({"run.rounds": "[" * 5000}, r"command line: run.rounds: is '\[.*\.\.\.; use a whole number"),
    ],
)
def test_the_command_line_is_named_as_the_source(overrides: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        load_run(overrides=overrides)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        load_run(tmp_path / "nothing.toml")
    with pytest.raises(SettingError, match="cannot be read"):
        load_run(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="is not TOML"):
        load_run(tmp_path / "binary")
    (tmp_path / "big").write_bytes(b"# " + b"x" * 2**20)
    with pytest.raises(SettingError, match="is larger than"):
        load_run(tmp_path / "big")
    with pytest.raises(SettingError, match="dmeo is unknown; did you mean demo"):
        load_run(preset="dmeo")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "RUN.toml").write_text("[run]\nrounds = 7", encoding="utf-8-sig")
    assert load_run(tmp_path / "RUN.toml").rounds == 7


def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "RUN.toml")
    with pytest.raises(SettingError, match="it is not a regular file"):
        load_run(tmp_path / "RUN.toml")


def test_every_part_of_a_run_has_its_table() -> None:
    parts = {f.name for f in fields(RunConfig)} - {"protocol", "mode", "train", "learners", "groups"}
    assert parts | {"run", "train", "model", "data", "inner"} == set(TABLES)


def test_reading_a_file_does_not_wait_for_torch() -> None:
    code = "import sys, gruppetto.config as c; c.load_run(preset='demo'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
