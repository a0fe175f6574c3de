"""The command line: what is refused in which words, and that no command loads what it does not need."""

import json
import os
import sys

import click
import pytest
from click.testing import CliRunner
from ringline.errors import Unavailable

from services.cli.commands._connection import Connection
from services.cli.commands._options import SECTIONS, describe
from services.cli.commands.engine import FOREIGN_FLAGS
from services.cli.commands.serve import stack_settings
from services.cli.main import COMMANDS, cli
from services.common.config.foreign_flags import Alias
from tests.programs import python, ringline, run
from tests.ring import MODEL

pytestmark = pytest.mark.long


@pytest.mark.parametrize("command", ["serve", "engine", "processor", "detokenizer"])
def test_the_help_of_a_service_fits_a_screen_or_two(command):
    lines = CliRunner().invoke(cli, [command, "--help"], terminal_width=80).output.splitlines()
    assert "Common options:" in lines
    assert len(lines) < 75


def test_titles_in_the_help_of_client_commands_have_their_options():
    commands = [cli.get_command(click.Context(cli), name) for name in ("generate", "embed")]
    names = {param.name for command in commands for param in command.params}
    assert {name for section in SECTIONS.values() for name in section} <= names


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("ringline sta", ["plain,status"]),
        ("ringline serve -ngl 99 --load-f", ["plain,--load-format"]),
        ("ringline serve --kv-cache-dtype fp", ["plain,fp8"]),
        ("ringline serve some/di", ["file,some/di"]),
        ("ringline plan some/di", ["file,some/di"]),
    ],
)
def test_a_shell_completes_commands_flags_and_values(words, completions):
    of_shell = {"_RINGLINE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(cli, env=of_shell, prog_name="ringline")
    assert (result.exit_code, result.output.splitlines()) == (0, completions)


def test_how_long_to_wait_is_under_no_title_of_a_generation():
    lines = CliRunner().invoke(cli, ["health", "--help"], terminal_width=80).output.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options:", "Connection:"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("engine",), "MODEL is missing"),
        (("engine", "a", "--model", "b"), "MODEL is 'a' and --model is 'b'"),
        (
            ("engine", "a", "--max-model-len", "1"),
            "--max-model-len (RINGLINE_MAX_MODEL_LEN): '1' is not usable: expected an integer, at least 2",
        ),
        (("serve", "a", "--max-num-seqs", "65537"), "'65537' is not usable: expected an integer from 1 to 65536"),
        (("serve", "--name", "x"), "--name is not an option of `ringline serve`, which links its services itself."),
        (("processor", "--engines", "nowhere"), "--engines (RINGLINE_ENGINES): 'nowhere' is not usable"),
        (("health", "nowhere"), "'nowhere' is not an address"),
        (("health", "--address", "nowhere"), "'nowhere' is not an address"),
        (("fly",), "No such command 'fly'"),
        (("-m", "model.gguf"), "-m is no option of `ringline` itself: a command comes first, such as `ringline serve"),
        (("serve", "m", "-hff", "m.gguf"), "-hff is not an option: name the file with its repository"),
        (("serve", "m", "--reasoning-format", "none"), "reasoning is never a part of the content"),
    ],
)
def test_a_wrong_command_line_ends_with_code_2_and_words(arguments, words):
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert words in done.stderr


ENGINES = (
    "is not an option: --data-parallel-size divides one machine among engines; on other machines start `ringline "
    "engine`, and list them in `ringline processor --engines`."
)


@pytest.mark.parametrize(
    ("command_line", "message"),
    [
        ("serve m --data-parallel-backend ray", f"--data-parallel-backend {ENGINES}"),
        ("engine m --data_parallel_size_local=2", f"--data_parallel_size_local {ENGINES}"),
        ("engine m -dpl 2", f"-dpl {ENGINES}"),
        (
            "processor -c 4096",
            "-c is called --max-model-len here, and is no option of `ringline processor`.",
        ),
        (
            "engine m --enable-prompt-adapter",
            "--enable-prompt-adapter is not supported: merge the adapter into the model's weights, and serve the "
            "merged checkpoint.",
        ),
        (
            "serve m --hf-overrides.rope_theta 3",
            "--hf-overrides.rope_theta is not supported: the checkpoint's config.json counts, or a GGUF file's "
            "metadata; change a copy of the checkpoint.",
        ),
        (
            "serve -m m --mmproj f",
            "--mmproj is not supported: models in GGUF files take text alone; pictures need the checkpoint in "
            "safetensors.",
        ),
        (
            "engine m --served-model-name a b",
            "--served-model-name has the further names b: give one here, and the others to `ringline processor "
            "--model-aliases`.",
        ),
        ("gateway --api-key k", "--api-key is an option of `ringline processor`, which the gateway passes keys on to."),
        (
            "serve m --log-file f",
            "--log-file is not supported: the log is the standard error stream, which your shell can redirect.",
        ),
        ("serve m --max-num-seq 3", "unknown option --max-num-seq; did you mean --max-num-seqs?"),
        ("serve m --max_num_seq 3", "unknown option --max_num_seq; did you mean --max-num-seqs?"),
        ("serve m --enable-xyzzy", "unknown option --enable-xyzzy; `ringline serve --help-all` lists them all."),
        ("generate hi --max-token 3", "unknown option --max-token; did you mean --max-tokens?"),
        ("token t -x", "unknown option -x; `ringline token --help` lists them all."),
    ],
)
def test_an_unknown_option_says_what_there_is_instead(command_line, message):
    with pytest.raises(click.UsageError) as caught:
        cli.main(command_line.split(), prog_name="ringline", standalone_mode=False)
    assert caught.value.format_message() == message


def test_an_option_of_vllm_that_is_there_has_no_entry_among_those_that_are_not():
    renamed = {name for name, entry in FOREIGN_FLAGS.items() if isinstance(entry, Alias) and entry.option == name}
    assert {setting.name for setting in stack_settings()}.isdisjoint(FOREIGN_FLAGS.keys() - renamed)


@pytest.mark.parametrize("arguments", ["--help", "serve --help", "config-docs", "fly 2>&1"])
def test_a_reader_that_has_enough_ends_a_command_without_a_word(arguments):
    reader, writer = os.pipe()
    os.close(reader)  # before anything is printed
    script = f"{{ {sys.executable} -m services.cli {arguments}; echo $? >&3; }} 3>&1 >&{writer}"
    done = run("bash", "-c", script, pass_fds=[writer])
    os.close(writer)
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize("service", ["engine", "processor", "detokenizer"])
def test_a_service_warns_of_a_misspelt_variable_and_of_no_other_services(service):
    model = (str(MODEL),) if service == "engine" else ()
    variables = {"RINGLINE_PATIENC": "3", "RINGLINE_PATIENCE": "3", "RINGLINE_ENABLE_PREFIX_CACHING": "no"}
    done = ringline(service, *model, "--uds", "/no/such/directory/socket", "--log-format", "json", env=variables)
    assert done.returncode == 3
    (warning,) = [record for record in map(json.loads, done.stderr.splitlines()) if record["level"] == "warning"]
    assert warning["variable"] == "RINGLINE_PATIENC"
    assert warning["nearest"] == "RINGLINE_PATIENCE"


@pytest.mark.parametrize(
    ("command_line", "reasons"),
    [
        (
            f"engine {MODEL} --trust-remote-code --seed=7",
            {"--trust-remote-code": "no code from a checkpoint is executed", "--seed": "each request has its own"},
        ),
        (f"engine {MODEL} --load-format=dummy --seed=7", {}),
        ("processor --disable-log-requests", {"--disable-log-requests": "requests are not logged"}),
    ],
)
def test_a_service_logs_why_a_flag_has_no_effect(command_line, reasons):
    done = ringline(*command_line.split(), "--uds", "/no/such/directory/socket", "--log-format", "json")
    warnings = [record for record in map(json.loads, done.stderr.splitlines()) if record["level"] == "warning"]
    assert [warning["flag"] for warning in warnings] == list(reasons)
    assert all(reasons[warning["flag"]] in warning["reason"] for warning in warnings)


def test_a_client_command_warns_of_a_misspelt_variable():
    done = ringline("generate", "hello", "--address", "127.0.0.1:9", env={"RINGLINE_ADRESS": "elsewhere:1"})
    warning, error = done.stderr.splitlines()
    assert warning == "warning: unknown variable RINGLINE_ADRESS; did you mean RINGLINE_ADDRESS?"
    assert error.startswith("Error: 127.0.0.1:9 is not available")


def test_every_command_is_there():
    context = click.Context(cli)
    for name in COMMANDS:
        assert cli.get_command(context, name).name == name


def test_a_command_that_does_not_compute_loads_neither_torch_nor_transformers():
    """Starting a supervisor, or refusing an option, must not take the seconds that torch takes."""
    code = """
import sys
from services.cli.main import cli
for command in ("serve", "engine", "processor", "detokenizer", "status", "health", "demo"):
    cli.main([command, "--help"], standalone_mode=False)
    heavy = [name for name in ("torch", "transformers", "numpy") if name in sys.modules]
    assert not heavy, (command, heavy)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_called_as_one_of_ours_does_not_get_in_between(tmp_path):
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    done = run(sys.executable, "-P", "-m", "services.cli", "--help", cwd=tmp_path)
    assert "Commands:" in done.stdout, done.stderr


@pytest.mark.parametrize("command", [("generate", "hello"), ("chat",), ("bench", "--requests", "1")])
def test_a_server_that_is_not_there_is_said_in_one_line_that_helps(command):
    done = ringline(*command, "--address", "127.0.0.1:9")
    assert done.returncode == 1
    expected = (
        "127.0.0.1:9 is not available: Connection refused; `ringline serve` starts a server, --address names another"
    )
    assert done.stderr.splitlines() == [f"Error: {expected}"]
    done = ringline(*command, "--address", "nowhere" if command[0] == "bench" else "127.0.0.1:9,nowhere")
    assert done.returncode == 2
    assert "'nowhere' is not an address: expected host:port" in done.stderr


def test_a_server_that_was_lost_is_named_once() -> None:
    error = Unavailable("127.0.0.1:1 is not available: Connection refused")
    expected = "127.0.0.1:1 is not available: Connection refused; `ringline serve` starts a server, "
    assert (
        describe(error, "127.0.0.1:1", Connection(False, None, None, None, None, None))
        == expected + "--address names another"
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_command_whose_streams_are_closed_does_its_work(closed, tmp_path):
    """Its files and sockets would have the numbers of the streams, and be written to."""
    folder = tmp_path / "certs"
    line = f"{sys.executable} -m services.cli certs {folder} {closed}"
    done = run("sh", "-c", line, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir())
    done = run("sh", "-c", f"{sys.executable} -m services.cli generate x --address 127.0.0.1:1 {closed}", timeout=60)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_output_that_has_no_room_is_one_line():
    done = run("sh", "-c", f"{sys.executable} -m services.cli --version >/dev/full", timeout=60)
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


def test_help_is_a_command_too():
    of_all, of_serve = (CliRunner().invoke(cli, arguments).output for arguments in (["help"], ["help", "serve"]))
    assert of_all == CliRunner().invoke(cli, ["--help"]).output
    assert of_serve == CliRunner().invoke(cli, ["serve", "--help"]).output
    assert CliRunner().invoke(cli, ["-V"]).output == CliRunner().invoke(cli, ["--version"]).output
