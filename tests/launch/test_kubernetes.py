"""The manifests are what Kubernetes takes, and call verbs as they are; nothing here asks a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gruppetto.cli import learner, syncer
from gruppetto.cli.flags import read_flags
from gruppetto.config import load_run

kubernetes_validate = pytest.importorskip("kubernetes_validate")

BASE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "base"
MANIFESTS = sorted(path for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((BASE / name).read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_fits_the_schema_of_its_kind(path: Path) -> None:
    kubernetes_validate.validate(read(path.name), kubernetes_validate.latest_version(), strict=True)


def test_the_schemas_refuse_what_is_none() -> None:
    wrong = read("syncer.yaml")
    wrong["spec"]["replica"] = wrong["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_base_holds_every_manifest_and_the_run() -> None:
    base = read("kustomization.yaml")
    assert sorted(base["resources"]) == [path.name for path in MANIFESTS]
    assert base["configMapGenerator"] == [{"name": "gruppetto-run", "files": ["run.toml"]}]


def container_of(name: str) -> dict[str, Any]:
    spec = read(name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts.keys() >= {"/run/gruppetto", "/etc/gruppetto/certs"}
    assert {volume["name"] for volume in spec["volumes"]} == set(mounts.values())
    return dict(container)


def test_a_learner_is_called_as_its_verb_wants() -> None:
    flags = read_flags(learner.Flags, container_of("learners.yaml")["args"], "learner")
    assert (flags.run, flags.name) == (("/run/gruppetto/run.toml",), "learner-$(JOB_COMPLETION_INDEX)")


@pytest.mark.parametrize(("pod", "begun", "standby"), [(0, False, False), (0, True, True), (1, False, True)])
def test_the_first_pod_begins_a_run_and_all_others_wait(tmp_path: Path, pod: int, begun: bool, standby: bool) -> None:
    *shell, script = container_of("syncer.yaml")["command"]
    state = tmp_path / "state"
    (state / "run" / "epochs" if begun else state).mkdir(parents=True)
    script = script.replace("/state", str(state)).replace("exec gruppetto syncer", "printf '%s\\n'")
    name = {"HOSTNAME": f"gruppetto-syncer-{pod}"}
    said = subprocess.run([*shell, script], capture_output=True, text=True, check=True, env=name).stdout
    flags = read_flags(syncer.Flags, said.split(), "syncer")
    assert (flags.run, flags.state) == (("/run/gruppetto/run.toml",), str(state / "run"))
    assert flags.standby is standby


def test_the_run_is_one_and_its_addresses_are_those_of_the_pods() -> None:
    run = load_run(BASE / "run.toml")
    pods, service = read("syncer.yaml"), read("service.yaml")
    name, port = pods["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert run.syncer.listen == f"0.0.0.0:{port}"
    assert run.syncer.urls == tuple(
        f"https://{name}-{i}.{pods['spec']['serviceName']}:{port}" for i in range(pods["spec"]["replicas"])
    )
    assert read("learners.yaml")["spec"]["completions"] == run.protocol.num_learners
