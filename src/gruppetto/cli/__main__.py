"""``gruppetto VERB``: finds the verb, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

from gruppetto.cli.aside import stderr_never_fails
from gruppetto.cli.parent import Terminated, sigterm_ends_in_order
from gruppetto.errors import GruppettoError, UserError

__all__ = ["VERBS", "main"]

VERBS = {
    "demo": "four unequal learners and a syncer on this machine, with a report",
    "train": "a whole local run, or one of its rivals: single, data-parallel, diloco",
    "launch": "a whole run on an engine: Ray, Slurm, or this machine",
    "syncer": "the service that merges what learners send",
    "learner": "one reference learner of a run",
    "status": "how a run stands, from its syncer or its directory",
    "dashboard": "a page that shows a run, while it goes on or afterwards",
    "checkpoint": "a consistent checkpoint of a whole run, while it goes on",
    "resume": "go on with a whole local run, from a checkpoint of it",
    "export": "the global model, as transformers or safetensors load it",
    "report": "figures, tables and a page about a run",
    "chaos": "a real run on this machine while things go wrong in it, with a verdict",
    "fuzz": "try to break the protocol: random faults in virtual time",
    "simulate": "goodput of millions of chips in virtual time, beside data parallel",
    "experiment": "what the paper claims, asked again at a small scale, with intervals",
    "plan": "how to train on a cluster: learners, quorum, period, codec, and why; with a RUN.toml",
    "corpus": "what exactly is in a corpus, and which ones package registries have",
    "certs": "certificates for a syncer, its learners and who looks: make, renew, revoke",
    "tokens": "tokens in place of certificates: add, revoke",
    "doctor": "whether this machine will do, what is wrong with it, and what it can do",
    "replay": "put a recorded run through a fresh core, and compare the decisions",
    "version": "which version this is",
}
EXTRAS = {"torch": "train", "tokenizers": "train", "transformers": "train", "peft": "integrations", "ray": "ray"}
"""With which extra a package comes that an installation may lack."""
INTERRUPTED, TERMINATED = 130, 143
"""After SIGINT and SIGTERM, and a clean end: 128 and the number of the signal, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gruppetto`` with these arguments (default: those of the process); the exit code."""
    with stderr_never_fails():
        _any_letter_can_be_printed()
        return _main(arguments)


def _any_letter_can_be_printed() -> None:
    """Where standard output has an encoding of few letters, the others are written as escapes, as on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        _check_text(given)
        with sigterm_ends_in_order():
            return _run(given)
    except GruppettoError as error:
        if debug:
            raise
        print(f"gruppetto: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            raise
        print("gruppetto: stopped by SIGINT", file=sys.stderr)
        return INTERRUPTED
    except Terminated:
        if debug:
            raise
        print("gruppetto: stopped by SIGTERM", file=sys.stderr)
        return TERMINATED
    except BrokenPipeError:
        # Whoever read our output has had enough; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if debug or package not in EXTRAS:
            raise
        print(f"gruppetto: needs the package {package}; pip install 'gruppetto[{EXTRAS[package]}]'", file=sys.stderr)
        return UserError.exit_code
    except OSError as error:
        # A full disk, a directory that may not be written: the machine's fault, said like everybody else's.
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"gruppetto: {where}{error.strerror or error}", file=sys.stderr)
        return GruppettoError.exit_code


def _check_text(given: list[str]) -> None:
    """Bytes that are no UTF-8 cannot be put on a wire, into a file of settings or on a page."""
    for argument in given:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"{argument!a} is not UTF-8", where="command line", fix="use another name") from None


def _run(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if given else UserError.exit_code
    verb, rest = given[0], given[1:]
    verb = "version" if verb in ("--version", "-V") else verb
    if verb not in VERBS:
        import difflib

        near = difflib.get_close_matches(verb, VERBS, n=1)
        raise UserError(f"{verb!r} is no verb", fix=f"did you mean {near[0]}?" if near else "see gruppetto --help")
    code: int = importlib.import_module(f"gruppetto.cli.{verb}").main(rest)
    return code


def _help() -> str:
    verbs = "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items())
    return (
        "usage: gruppetto VERB [options]\n\n"
        "Decoupled DiLoCo: many independent learners train one model and never wait for each other.\n\n"
        f"{verbs}\n\n"
        "gruppetto VERB --help says more. --debug, after any verb, shows where an error comes from.\n"
        "Exit codes: 0 done, 1 failed, 2 something for you to mend, 3 replaced by another syncer,\n"
        "130 and 143 stopped by SIGINT and SIGTERM."
    )


if __name__ == "__main__":
    sys.exit(main())
