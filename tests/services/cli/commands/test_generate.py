import asyncio
import json
import signal
import sys

import grpc
import pytest
from click.testing import CliRunner, Result
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1.inference_pb2 import SamplingParams
from ringline.types.v1 import output_pb2, part_pb2
from ringline.types.v1.constraint_pb2 import ChoiceOfTexts, Constraint
from ringline.types.v1.sampling_pb2 import BeamSearch

from services.cli.commands.generate import generate
from tests.clients.scripted_server import Abort, admitted, call, delta, ended, forever, play, refusal


async def run(scripted_processor, *args: str, stdin: str | None = None) -> Result:
    command = ["--address", scripted_processor.address, *args]
    return await asyncio.to_thread(CliRunner().invoke, generate, command, input=stdin)


async def test_text_goes_to_the_terminal(scripted_processor):
    result = await run(scripted_processor, "Hi")
    assert (result.exit_code, result.stdout) == (0, "Hello, world\n")


async def test_of_several_addresses_one_that_works_is_asked(scripted_processor):
    command = ["--address", f"127.0.0.1:9, {scripted_processor.address}", "Hi"]
    for _ in range(3):  # which is asked first is drawn
        result = await asyncio.to_thread(CliRunner().invoke, generate, command)
        assert (result.exit_code, result.stdout) == (0, "Hello, world\n")


async def test_json_is_one_object(scripted_processor):
    result = await run(scripted_processor, "Hi", "--json")
    document = json.loads(result.stdout)
    assert document == {
        "text": "Hello, world",
        "token_ids": [10, 11, 12, 13],
        "finish_reason": "stop",
        "stop": 13,
        "usage": {"prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 4},
        "model": "tiny",
        "seed": 7,
    }


async def test_json_has_log_probabilities_when_asked(scripted_processor):
    packed = output_pb2.Logprobs(logprobs=[-0.5], ranks=[2], top_count=2, top_ids=[8, 5], top_logprobs=[-0.25, -0.5])
    impossible = output_pb2.Logprobs(logprobs=[float("-inf")], ranks=[9])
    scripted_processor.plays(
        play(
            admitted(prompt_tokens=2, prompt_token_ids=[1, 2]),
            pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(logprobs=impossible)),
            delta(0, [5], "a", logprobs=packed),
            ended(completion=1),
        )
    )
    document = json.loads(
        (await run(scripted_processor, "Hi", "--json", "--logprobs", "2", "--prompt-logprobs", "0")).stdout
    )
    top = [{"token_id": 8, "logprob": -0.25}, {"token_id": 5, "logprob": -0.5}]
    assert document["logprobs"] == [{"token_id": 5, "logprob": -0.5, "rank": 2, "top": top}]
    assert document["prompt_logprobs"] == [{"token_id": 2, "logprob": None, "rank": 9, "top": []}]
    sent = scripted_processor.service.requests[0].output
    assert (sent.logprobs, sent.prompt_logprobs, sent.return_prompt_token_ids) == (2, 0, True)


async def test_several_choices(scripted_processor):
    scripted_processor.plays(
        play(
            admitted(n=2),
            delta(0, [1], "one"),
            delta(0, [2], "two", choice=1),
            ended(),
            ended(choice=1, completion=2),
        )
    )
    choices = json.loads((await run(scripted_processor, "Hi", "--json", "--n", "2")).stdout)["choices"]
    assert [(choice["index"], choice["text"], choice["token_ids"]) for choice in choices] == [
        (0, "one", [1]),
        (1, "two", [2]),
    ]
    assert (await run(scripted_processor, "Hi", "--n", "2")).stdout == "[0] one\n[1] two\n"


async def test_every_flag_reaches_its_field(scripted_processor):
    flags = """--json --model tiny --max-tokens 5 --min-tokens 0 --temperature 0 --top-k 0 --top-p 0.5 --min-p 0.25
        --frequency-penalty -1 --presence-penalty 1 --repetition-penalty 1.5 --logit-bias 3:-2.5 --logit-bias 4:1
        --allowed-token-ids 1,2 --seed 9 --n 1 --stop END --stop . --include-stop-str-in-output --stop-token-ids 7
        --ignore-eos --bad-words no --logprobs 0 --no-skip-special-tokens --truncate-prompt-tokens 4
        --no-add-special-tokens --priority -2 --cache-salt salt --timeout 60"""
    result = await run(scripted_processor, "Hi", *flags.split())
    assert result.exit_code == 0, result.output
    sent = scripted_processor.service.requests[0]
    assert 0 < sent.timeout_ms <= 60_000
    sent.ClearField("timeout_ms")
    assert sent == pb.GenerateRequest(
        text="Hi",
        model="tiny",
        add_special_tokens=False,
        truncate_prompt_tokens=4,
        priority=-2,
        cache_salt="salt",
        sampling=SamplingParams(
            temperature=0,
            top_k=0,
            top_p=0.5,
            min_p=0.25,
            frequency_penalty=-1,
            presence_penalty=1,
            repetition_penalty=1.5,
            logit_bias={3: -2.5, 4: 1},
            allowed_token_ids=[1, 2],
            seed=9,
            n=1,
        ),
        stopping=pb.StoppingParams(
            max_tokens=5,
            min_tokens=0,
            stop=["END", "."],
            include_stop_str_in_output=True,
            stop_token_ids=[7],
            ignore_eos=True,
            bad_words=["no"],
        ),
        output=pb.OutputParams(logprobs=0, skip_special_tokens=False, return_prompt_token_ids=True),
    )


async def test_without_flags_all_but_the_time_limit_is_left_to_the_server(scripted_processor):
    await run(scripted_processor, "Hi")
    (sent,) = scripted_processor.service.requests
    assert sent.timeout_ms == pytest.approx(3_600_000, abs=60_000)  # an hour is the client's default
    sent.ClearField("timeout_ms")
    resumable = pb.OutputParams(return_prompt_token_ids=True)
    assert sent == pb.GenerateRequest(text="Hi", output=resumable)


async def test_the_kinds_of_prompts(scripted_processor):
    await run(scripted_processor, "-", stdin="from a pipe\n\n")
    await run(scripted_processor, "--token-ids", "1,2,3")
    await run(scripted_processor, "Hi", "--chat", "--system", "Be brief.")
    piped, ids, chat = scripted_processor.service.requests
    assert piped.text == "from a pipe\n"
    assert list(ids.token_ids.ids) == [1, 2, 3]
    assert [(message.role, message.content) for message in chat.chat.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["Hi", "--token-ids", "1"],
        ["--token-ids", "1,x"],
        ["--token-ids", "-1"],
        ["Hi", "--logit-bias", "3"],
        ["Hi", "--system", "x"],
        ["--chat", "--token-ids", "1"],
        ["Hi", "--max-tokens", "-1"],
        ["Hi", "--timeout", "0"],
        ["Hi", "--logprobs", "1"],
        ["Hi", "--colour"],
    ],
    ids=" ".join,
)
async def test_a_wrong_usage_is_told_before_anything_is_sent(scripted_processor, args):
    result = await run(scripted_processor, *args)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not scripted_processor.service.requests


async def test_a_value_that_no_field_can_hold_is_told_by_its_flag(scripted_processor):
    result = await run(scripted_processor, "Hi", "--stop-token-ids", "5,-1")
    assert "Error: --stop-token-ids[1]: -1 is out of range: expected at least 0\n" in result.stderr


async def test_what_the_server_refuses_is_one_line(scripted_processor):
    problems = {
        "sampling.top_p: 2 is out of range: expected at most 1": "--top-p: 2 is out of range: expected at most 1",
        "sampling.logit_bias[3]: 200 is out of range": "--logit-bias[3]: 200 is out of range",
        "prompt: is empty": "INVALID_ARGUMENT: prompt: is empty",
    }
    for problem, shown in problems.items():
        violation = error_details_pb2.BadRequest.FieldViolation(field=problem.partition(":")[0], description=problem)
        detail = error_details_pb2.BadRequest(field_violations=[violation])
        scripted_processor.plays(play(refusal(grpc.StatusCode.INVALID_ARGUMENT, problem, detail)))
        for flags in ([], ["--json"]):
            result = await run(scripted_processor, "Hi", *flags)
            assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {shown}\n")


async def test_a_cut_answer_is_printed_as_far_as_it_came_and_is_a_failure(scripted_processor):
    scripted_processor.plays(
        play(admitted(), delta(0, [1], "half an"), Abort(grpc.StatusCode.UNAVAILABLE, "engine died"))
    )
    result = await run(scripted_processor, "Hi")
    assert (result.exit_code, result.stdout) == (1, "half an\n")
    assert "engine died" in result.stderr


async def test_the_address_comes_from_the_environment(scripted_processor):
    env = {"RINGLINE_ADDRESS": scripted_processor.address}
    result = await asyncio.to_thread(CliRunner(env=env).invoke, generate, ["Hi"])
    assert result.stdout == "Hello, world\n"


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_ctrl_c_ends_the_request_and_the_command(scripted_processor, flags):
    scripted_processor.plays(forever)
    command = ["-m", "services.cli", "generate", "Hi", *flags, "--address", scripted_processor.address]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        await scripted_processor.service.asked.wait()
        process.send_signal(signal.SIGINT)
        await scripted_processor.service.cancelled.wait()
        printed, _ = await process.communicate()
    assert process.returncode == 130
    assert set(printed.decode()) <= ({"x", "\n"} if not flags else set())


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        (["--json-schema", ' {"type": "null"}'], Constraint(json_schema=' {"type": "null"}')),
        (["--json-schema", "file", "--any-whitespace"], Constraint(json_schema="in the file", any_whitespace=True)),
        (["--json-object", "--no-any-whitespace"], Constraint(json_object=True)),
        (["--regex", "[0-9]+"], Constraint(regex="[0-9]+")),
        (["--choice", "yes", "--choice", "no"], Constraint(choice=ChoiceOfTexts(texts=["yes", "no"]))),
        (["--grammar", "file"], Constraint(grammar="in the file")),
    ],
)
async def test_the_form_of_the_answer(scripted_processor, tmp_path, monkeypatch, flags, form):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the file")
    result = await run(scripted_processor, "Hi", *flags)
    assert result.exit_code == 0, result.output
    assert scripted_processor.service.requests[0].constraint == form
    assert result.stderr == ""


@pytest.mark.parametrize(("flags", "is_said"), [((), False), (("--regex", "[a-z]+"), True)])
async def test_an_answer_without_the_end_of_its_form_is_said_to_be_cut_off(scripted_processor, flags, is_said):
    cut = ended(completion=1, reason=output_pb2.FINISH_REASON_LENGTH)
    scripted_processor.plays(play(admitted(), delta(0, [5], "a"), cut))
    result = await run(scripted_processor, "Hi", *flags)
    assert (result.exit_code, result.stdout) == (0, "a\n")
    assert ("Cut off" in result.stderr) is is_said


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--json-schema", "absent"], "Invalid value for '--json-schema': cannot read 'absent': No such file"),
        (["--regex", "a", "--choice", "b"], "--regex and --choice exclude each other: an answer has one form."),
        (["--regex", "a", "--any-whitespace"], "--any-whitespace is for JSON: give --json-schema or --json-object."),
        (["--tools", "tools"], "--tools and --tool-choice need --chat."),
        (["--chat", "--tool-choice", "add"], "--tool-choice needs --tools."),
        (
            ["--max-reasoning-tokens", "3"],
            "--max-reasoning-tokens needs --reasoning-format, which says how reasoning ends.",
        ),
        (["--chat", "--tools", "text"], "Invalid value for '--tools': 'text' is not JSON: "),
        (
            ["--chat", "--tools", "number"],
            "Invalid value for '--tools': 'number' is not a list of tools: expected",
        ),
        (["--chat", "--tools", "unnamed"], "--tools[0].name: expected str, got int"),
        (["--chat", "--tools", "tools", "--tool-choice", "ad"], "--tool-choice: 'ad' is not a tool of this request"),
    ],
)
async def test_what_is_no_form_and_no_tool_is_wrong_usage(scripted_processor, tmp_path, monkeypatch, flags, text):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "tools": '[{"name": "add"}]',
        "text": "add",
        "number": "3",
        "unnamed": '[{"name": 3}]',
    }.items():
        (tmp_path / name).write_text(content)
    result = await run(scripted_processor, "Hi", *flags)
    assert (result.exit_code, scripted_processor.service.requests) == (2, [])
    assert f"Error: {text}" in " ".join(result.stderr.split())


async def test_the_parts_of_an_answer(scripted_processor, tmp_path):
    """Reasoning goes to stderr, so that a pipe gets the answer alone."""
    (tmp_path / "tools").write_text('[{"name": "add"}]')
    first = admitted()
    first.admitted.output.parse.SetInParent()
    thought, said = part_pb2.Part(reasoning="Hm"), part_pb2.Part(content="So: ")
    calls = [call('{"a": ', "add"), call("1}"), call("{}", "now", 1)]
    last = ended(output_pb2.FINISH_REASON_STOP, completion=2, reasoning=1, parts=calls[1:])
    scripted_processor.plays(
        play(first, delta(0, [1], "…", parts=[thought]), delta(1, [2], "…", parts=[said, calls[0]]), last)
    )
    flags = ["--chat", "--tools", str(tmp_path / "tools"), "--tool-choice", "required", "--tool-call-format", "hermes"]
    result = await run(scripted_processor, "1+1?", *flags, "--reasoning-format", "think")
    assert (result.stdout, result.stderr) == ('So: \nadd({"a": 1})\nnow({})\n', "Hm\n")
    sent = scripted_processor.service.requests[0].chat
    assert (sent.tools[0].name, sent.tool_choice.mode) == ("add", pb.ToolChoice.MODE_REQUIRED)
    parse = scripted_processor.service.requests[0].output.parse
    assert (parse.tool_calls, parse.reasoning) == ("hermes", "think")

    document = json.loads((await run(scripted_processor, "1+1?", *flags, "--json")).stdout)
    assert (document["content"], document["reasoning"]) == ("So: ", "Hm")
    assert document["tool_calls"][0] == {"id": "id-add", "name": "add", "arguments": '{"a": 1}'}
    assert document["usage"]["reasoning_tokens"] == 1


async def test_pictures_are_a_chat(scripted_processor, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    image = ("--image", str(path))
    for arguments, expected in (
        ((*image, "What is it?"), [b"\x89PNG", "What is it?"]),
        ((*image, *image), [b"\x89PNG", b"\x89PNG"]),
    ):
        assert (await run(scripted_processor, *arguments)).exit_code == 0
        request = scripted_processor.service.requests[-1]
        assert [part.text or part.media.data for part in request.chat.messages[0].content_parts] == expected
        assert "media" in request.requires
    assert (await run(scripted_processor, "--image", str(tmp_path / "none.png"), "Hi")).exit_code == 2
    assert (await run(scripted_processor, *image, "--token-ids", "1")).exit_code == 2


async def test_beams_are_searched_with_flags(scripted_processor):
    message = admitted(n=2)
    message.admitted.sampling.ClearField("seed")
    ends = [ended(choice=0, beam_score=-0.5), ended(choice=1, completion=2, beam_score=-0.75)]
    scripted_processor.plays(*[play(message, delta(0, [5], "a"), delta(0, [6], "b", choice=1), *ends)] * 2)
    flags = ["--beams", "4", "--n", "2", "--length-penalty", "0.5", "--early-stopping", "never", "--no-speculation"]
    result = await run(scripted_processor, "Hi", *flags)
    assert (result.exit_code, result.stdout) == (0, "[0] a\n[1] b\n")
    (request,) = scripted_processor.service.requests
    assert request.beam_search == BeamSearch(width=4, length_penalty=0.5, early_stopping="EARLY_STOPPING_NEVER")
    assert (request.HasField("speculation"), request.speculation) == (True, False)
    document = json.loads((await run(scripted_processor, "Hi", *flags, "--json")).stdout)
    assert [choice["beam_score"] for choice in document["choices"]] == [-0.5, -0.75]
    assert document["seed"] is None


async def test_wrong_beams_are_refused_by_their_flags(scripted_processor):
    result = await run(scripted_processor, "Hi", "--length-penalty", "2")
    assert result.exit_code == 2
    assert "--length-penalty and --early-stopping need --beams." in result.output
    result = await run(scripted_processor, "Hi", "--beams", "-1")
    assert "--beams: -1 is out of range: expected at least 0" in result.output
    field = error_details_pb2.BadRequest.FieldViolation(field="beam_search.width", description="99 is out of range")
    details = error_details_pb2.BadRequest(field_violations=[field])
    refused = refusal(grpc.StatusCode.INVALID_ARGUMENT, "beam_search.width: 99 is out of range", details)
    scripted_processor.plays(play(refused))
    result = await run(scripted_processor, "Hi", "--beams", "99")
    assert (result.exit_code, "--beams: 99 is out of range" in result.output) == (1, True)
