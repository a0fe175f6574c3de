"""The command lines in the documents work as they are written: against the running ring where they ask a server,
and as far as their options where they would start one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from services.cli.commands.engine import FOREIGN_FLAGS
from services.cli.main import COMMANDS, cli
from services.common.config.foreign_flags import Alias, NoEffect, entry_of
from tests.docs.documents import ROOT, command_lines, inline_code
from tests.programs import output_of, run
from tests.ring import Ring

SERVERS = ("serve", "engine", "processor", "detokenizer", "gateway", "demo")
WRITERS = ("certs", "token")
"""They make files, or what is to be put into one."""
CONVERSATION = "Hello!\n/exit\n"
GREEDY = " --temperature 0"
"""Else an answer may be empty: its first token may be the end."""
SMALL_LOAD = " --input-len 8 --output-len 4"
NOT_OURS = {"--cacert", "--model-path", "--scale", "--worker-urls"}
OF_RAY_AND_DOCKER = {
    "--address",
    "--disable-usage-stats",
    "--head",
    "--include-dashboard",
    "--node-ip-address",
    "--pid",
    "--ppid",
    "--profile",
    "--shm-size",
}
FOREIGN_FLAGS_NAMED = {f"--{name.replace('_', '-')}" for name in FOREIGN_FLAGS} | {"--api-key"}
"""Of servers that a page is about."""
OF_POOLING = re.compile(r"/(embeddings|rerank|score|classify)\b")
FLAG = re.compile(r"(?<!\S)--[a-z0-9-]+")
OLDEST = ROOT / ".venv-oldest" / "bin" / "python"

LINES = command_lines()


def program(line: str) -> str:
    """What a line runs, of its last pipe's end."""
    return shlex.split(line.rpartition("|")[2])[0].rpartition("/")[2]


def subcommand(line: str) -> str:
    return shlex.split(line.rpartition("|")[2])[1]


def lines_of(name: str) -> list[str]:
    return [line for line in LINES if program(line) == name]


def unknown_to_script(command: str) -> list[str]:
    """What a line that runs a program of the repository names but the program does not know."""
    words = command.split()
    path = ROOT / (f"{words[2].replace('.', '/')}.py" if words[1] == "-m" else words[1])
    path = path if path.exists() else path.with_suffix("") / "__main__.py"
    if words[1:3] == ["-m", "pytest"]:
        return []
    if not path.exists():
        return [words[2] if words[1] == "-m" else words[1]]
    # Those that several benchmarks share are declared beside what they choose.
    sources = [path, *(path.parent / name for name in ("report.py", "shapes.py") if path.parent.name == "benchmarks")]
    known = {flag for source in sources for flag in re.findall(r'"(--[a-z-]+)"', source.read_text())}
    if "parse_known_args" in path.read_text():  # the rest is for the ring that it serves
        known |= options_of_all()
    return [flag for flag in FLAG.findall(command) if flag not in known]


def options_of_all() -> set[str]:
    """Every flag of every command."""
    context = click.Context(cli)
    commands = [cli, *(cli.get_command(context, name) for name in COMMANDS)]
    found = {"--help", "--version"}
    for command in commands:
        for param in command.params:
            found |= {*param.opts, *param.secondary_opts}
    return found


def is_answered(line: str) -> bool:
    """Whether the running ring, which has no TLS, can answer a line."""
    return subcommand(line) not in (*SERVERS, *WRITERS, "plan") and "--tls-" not in line


def test_nothing_is_left_out() -> None:
    others = {"smg"}  # installed for `make test-doors` alone, which starts it like this
    assert {program(line) for line in LINES} - others == {"ringline", "make", "pip", "python", "curl"}


@pytest.mark.parametrize(
    "line", [line for line in lines_of("ringline") if subcommand(line) != "plan" and not is_answered(line)]
)
def test_what_starts_servers_or_needs_certificates_takes_its_options(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    command = cli.get_command(click.Context(cli), name)
    command.make_context(name, arguments)


@pytest.mark.parametrize("line", [line for line in lines_of("ringline") if subcommand(line) == "plan"])
def test_what_asks_nobody_is_answered(line: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    cli.main(shlex.split(line)[1:], standalone_mode=False)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("line", [line for line in lines_of("ringline") if is_answered(line)])
def test_what_asks_a_server_is_answered(line: str, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    line = line.replace("127.0.0.1:50061", ring.engine_address)
    line += {"bench": SMALL_LOAD, "chat": GREEDY, "generate": GREEDY}.get(subcommand(line), "")
    environment = {"RINGLINE_ADDRESS": ring.address}
    if "|" in line:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        assert output_of("sh", "-c", line, env=environment | {"PATH": path}).strip()
        return
    done = CliRunner(env=environment).invoke(cli, shlex.split(line)[1:], input=CONVERSATION)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip()


@pytest.mark.parametrize("line", [line for line in lines_of("curl") if not OF_POOLING.search(line)])
def test_what_curl_asks_is_answered(line: str, ring: Ring) -> None:
    told = output_of("sh", "-c", f"{line} --fail --silent --show-error".replace("http://127.0.0.1:8000", ring.http))
    assert told.strip()


@pytest.mark.parametrize("line", [line for line in lines_of("curl") if OF_POOLING.search(line)])
def test_what_curl_asks_of_models_that_pool_is_only_refused_for_the_model(line: str, ring: Ring) -> None:
    told = output_of("sh", "-c", f"{line} --silent --show-error".replace("http://127.0.0.1:8000", ring.http))
    assert json.loads(told)["error"]["param"] == "model"


@pytest.mark.parametrize("line", lines_of("make"))
def test_make_knows_its_targets(line: str) -> None:
    output_of(*shlex.split(line), "-n")


@pytest.mark.parametrize("line", lines_of("pip"))
def test_what_pip_installs_from_here_is_here(line: str) -> None:
    _, _, *what = shlex.split(line)
    folders = [path.partition("[")[0] for path in what if path.startswith(".")]  # without extras
    assert all((ROOT / folder / "pyproject.toml").exists() for folder in folders)


@pytest.mark.parametrize("line", [line for line in lines_of("python") if " grpc_tools." in line])
def test_stubs_can_be_made_and_imported(line: str, tmp_path: Path) -> None:
    assert OLDEST.exists(), "run `make setup`, which installs the generator"
    (tmp_path / "protos").symlink_to(ROOT / "protos")
    line = line.replace("python", str(OLDEST), 1)
    output_of("sh", "-c", line, cwd=tmp_path)
    use = "from ringline.inference.v1 import inference_pb2_grpc as made; print(made.__file__)"
    (packages,) = OLDEST.parents[1].glob("lib/python*/site-packages")
    # Without site, the client that is installed in editable form is not there.
    made = output_of(OLDEST, "-S", "-c", use, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{packages}"})
    assert made.startswith(str(tmp_path))


@pytest.mark.parametrize("line", [line for line in lines_of("python") if " grpc_tools." not in line])
def test_programs_take_their_options(line: str) -> None:
    assert unknown_to_script(line) == []


def flags_of_scripts(folder: str) -> set[str]:
    """All that any of a folder's scripts names."""
    return {flag for path in (ROOT / folder).glob("*.py") for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())}


def is_taken(flag: str) -> bool:
    """Whether it is another server's, and sets an option of ours or has no effect."""
    return isinstance(entry_of(flag, FOREIGN_FLAGS), Alias | NoEffect)


def test_commands_and_flags_that_are_named_exist() -> None:
    known, wrong = options_of_all() | NOT_OURS, []
    of_benchmarks = flags_of_scripts("benchmarks")
    of_others = {
        "CONTRIBUTING.md": {"--wide"},
        "distributed.md": OF_RAY_AND_DOCKER,
        "failover.md": flags_of_scripts("tests/chaos"),
        "from-llama-cpp.md": FOREIGN_FLAGS_NAMED,
        "from-vllm.md": FOREIGN_FLAGS_NAMED,
        "gpu.md": of_benchmarks | flags_of_scripts("benchmarks/gpu") | flags_of_scripts("tests/gpu"),
        "install.md": {"--extra-index-url"},  # of pip
        "lm-eval.md": {"--apply"},
        "openai.md": {"--disable", "--system-prompt"},  # of agents
        "quantization.md": of_benchmarks,
        "security.md": flags_of_scripts("tests/fuzz"),
    }
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document, code in inline_code():
        words = code.split()
        if words[0].endswith("python") and len(words) > 1 and "…" not in code:
            wrong += [f"{document.name}: {word}" for word in unknown_to_script(code)]
            continue
        here = known | of_benchmarks if document.parent.name == "benchmarks" else known
        here = here | of_others.get(document.name, set())
        missing = [flag for flag in FLAG.findall(code) if flag not in here and not is_taken(flag)]
        if words[0] == "ringline" and len(words) > 1 and words[1] not in (*COMMANDS, *known):
            missing.append(words[1])
        if words[0] == "make" and len(words) > 1 and words[1] not in targets:
            missing.append(words[1])
        wrong += [f"{document.name}: {word}" for word in missing]
    assert wrong == []


def test_an_engine_where_only_a_cpu_tier_is_installed_says_what_is_missing() -> None:
    ringline = ROOT / ".venv-cpu" / "bin" / "ringline"
    assert ringline.exists(), "run `make setup`, which installs a CPU tier"
    done = run(ringline, "engine", "checkpoints/tiny", "--log-format", "console")
    assert done.returncode == 3
    *_, last = done.stderr.splitlines()
    assert re.fullmatch(r"error: the engine needs \w+, which is not installed: .*\[engine\]", last)
