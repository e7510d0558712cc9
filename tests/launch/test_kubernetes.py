"""The manifests are what Kubernetes takes, and call verbs as they are; nothing here asks a cluster."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

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


@pytest.mark.parametrize(("name", "verb"), [("syncer.yaml", "syncer"), ("learners.yaml", "learner")])
def test_the_command_lines_are_those_of_the_verbs(name: str, verb: str) -> None:
    spec = read(name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    flags = read_flags(importlib.import_module(f"gruppetto.cli.{verb}").Flags, container["args"], verb)
    assert flags.run == ("/run/gruppetto/run.toml",)
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts.keys() >= {"/run/gruppetto", "/etc/gruppetto/certs"}
    assert {volume["name"] for volume in spec["volumes"]} == set(mounts.values())


def test_the_run_is_one_and_its_addresses_are_those_of_the_pods() -> None:
    run = load_run(BASE / "run.toml")
    syncer, service = read("syncer.yaml"), read("service.yaml")
    name, port = syncer["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert run.syncer.listen == f"0.0.0.0:{port}"
    assert run.syncer.urls == tuple(
        f"https://{name}-{i}.{syncer['spec']['serviceName']}:{port}" for i in range(syncer["spec"]["replicas"])
    )
    assert read("learners.yaml")["spec"]["completions"] == run.protocol.num_learners
