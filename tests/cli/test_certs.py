"""The verbs certs and tokens, and who tells of what expires."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gruppetto.cli.__main__ import main
from gruppetto.errors import SettingError
from gruppetto.launch.papers import learner_papers, looker_papers, looker_papers_in
from gruppetto.launch.papers_checkup import look_at_papers
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.issuing import Authority

DAY = 86_400


@pytest.fixture
def certs(tmp_path: Path) -> str:
    return str(tmp_path / "certs")


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_has_its_papers_in_one_command_and_a_second_one_changes_nothing(
    certs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make = ["certs", "make", "--dir", certs, "--learner", "a", "--learner", "b", "--host", "s.example", "--json"]
    assert main(make) == 0
    assert said(capsys)["made"] == ["ca", "syncer", "operator-admin", "learner-a", "learner-b"]
    before = {path.name: path.read_bytes() for path in Path(certs).iterdir()}
    assert main(make) == 0 and said(capsys)["made"] == []
    assert {path.name: path.read_bytes() for path in Path(certs).iterdir()} == before
    assert main([*make, "--learner", "c"]) == 0 and said(capsys)["made"] == ["learner-c"]
    assert main(["certs", "show", "--dir", certs, "--json"]) == 0
    papers = {paper["who"]: paper for paper in said(capsys)["papers"]}
    assert list(papers) == [
        "the authority", "learner a", "learner b", "learner c", "operator admin", "syncer syncer",
    ]  # fmt: skip
    assert {"s.example", "127.0.0.1", "::1", "localhost"} <= set(papers["syncer syncer"]["hosts"])
    assert main(["certs", "make", "--dir", certs, "--host", "t.example"]) == 2
    assert "is not for t.example; say gruppetto certs renew syncer:syncer" in capsys.readouterr().err


def test_a_host_that_is_there_anyway_may_be_named(certs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "make", "--dir", certs, "--host", "localhost", "--host", "10.0.0.7"]) == 0
    assert main(["certs", "show", "--dir", certs]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("syncer")]
    assert line.split().count("localhost") == 1 and "10.0.0.7" in line


def test_revoking_and_coming_back(certs: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["certs", "make", "--dir", certs, "--learner", "a"])
    assert main(["certs", "revoke", "a", "--dir", certs]) == 0
    assert "shows it out within seconds" in capsys.readouterr().out
    assert not (Path(certs) / "learner-a.key").exists() and " learner a " in (Path(certs) / "revoked").read_text()
    assert main(["certs", "revoke", "a", "--dir", certs]) == 2
    assert main(["certs", "make", "--dir", certs, "--learner", "a"]) == 0
    with pytest.raises(SettingError, match="no certificate and no token of learner z"):
        learner_papers(certs, None, "z")


def test_tokens_never_show_and_are_taken_back(certs: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["certs", "make", "--dir", certs])
    assert main(["tokens", "add", "viewer:eve", "b", "--dir", certs]) == 0
    secrets = [(Path(certs) / name).read_text().strip() for name in ("viewer-eve.token", "learner-b.token")]
    assert main(["tokens", "add", "b", "--dir", certs]) == 2
    assert main(["tokens", "show", "--dir", certs]) == 0
    assert main(["tokens", "revoke", "viewer:eve", "--dir", certs]) == 0
    out, err = capsys.readouterr()
    assert not any(secret in out + err for secret in secrets)
    assert "viewer eve\nlearner b\n" in out and "viewer eve: 1 taken back" in out
    papers = learner_papers(certs, None, "b")
    assert papers.token == secrets[1] and papers.tls is not None and papers.personal
    assert looker_papers(certs, None).cert == Path(certs) / "operator-admin.pem"
    file = Path(certs) / "learner-b.token"
    assert looker_papers(certs, str(file)).token == secrets[1]


def test_a_run_directory_says_where_its_papers_lie(certs: str, tmp_path: Path) -> None:
    main(["certs", "make", "--dir", certs])
    (tmp_path / "run.toml").write_text(f'[syncer]\ncerts = "{certs}"\n')
    assert looker_papers_in(tmp_path, None, None).cert == Path(certs) / "operator-admin.pem"
    assert looker_papers_in(tmp_path / "elsewhere", None, None).tls is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["certs"], "say one of make, renew, revoke, show"),
        (["certs", "destroy"], "say one of make"),
        (["certs", "revoke"], "whose?"),
        (["certs", "make", "a"], "say --learner NAME"),
        (["certs", "make", "--learner", "../a"], "is no name"),
        (["certs", "make", "--learner", "a" * 129], "is no name"),
        (["certs", "make", "--host", "http://x"], "is no host"),
        (["certs", "make", "--days", "0"], "use 1 to 36500"),
        (["certs", "revoke", "king:a"], "is no role"),
        (["certs", "renew", "a", "--host", "x"], "--host is for a syncer"),
        (["certs", "show"], "holds no certificates"),
        (["tokens"], "say one of add"),
        (["tokens", "add"], "whose?"),
        (["tokens", "add", "viewer:../x"], "is no name"),
        (["tokens", "revoke", "a"], "has no token of learner a"),
        (["tokens", "show"], "holds no tokens"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], says: str, certs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--dir", certs]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert not list(Path(certs).parent.rglob("learner-*"))


def test_the_checkup_says_what_expires_and_what_others_can_read(certs: str) -> None:
    directory, now = Path(certs), wall_time_s()
    authority = Authority(directory, now=now - 90 * DAY)
    main(["certs", "make", "--dir", certs, "--learner", "a"])
    assert [finding.level for finding in look_at_papers(directory, now=now)] == ["ok"]
    from gruppetto.cli.certs import identity_named

    authority.make(identity_named("old"), days=80)
    authority.make(identity_named("soon"), days=100)
    os.chmod(directory / "learner-a.key", 0o640)  # noqa: PTH101
    (directory / "bad.pem").write_text("x")
    found = {finding.text.rpartition("/")[2].split()[0]: finding for finding in look_at_papers(directory, now=now)}
    assert {name: finding.level for name, finding in found.items()} == {
        "bad.pem:": "wrong",
        "learner-old.pem": "wrong",
        "learner-soon.pem": "warning",
        "learner-a.key": "wrong",
    }
    assert "gruppetto certs renew" in found["learner-old.pem"].fix and "chmod 600" in found["learner-a.key"].fix
    assert [finding.level for finding in look_at_papers(directory / "none", now=now)] == ["wrong"]


@pytest.mark.parametrize("verb", ["checkpoint", "export", "status", "dashboard"])
def test_help_promises_a_viewer_no_more_than_the_syncer_grants(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    said = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "operator's" in said
    assert ("operator's or viewer's own" in said) is (verb in ("status", "dashboard"))
