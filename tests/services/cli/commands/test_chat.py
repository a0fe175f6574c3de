import asyncio
import os
import pty
import signal
import sys

import grpc
from click.testing import CliRunner, Result
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import part_pb2

from services.cli.commands.chat import chat
from tests.clients.scripted_server import admitted, call, delta, ended, forever, hello, play, refusal


async def run(scripted_processor, lines: str, *args: str) -> Result:
    command = ["--address", scripted_processor.address, *args]
    return await asyncio.to_thread(CliRunner().invoke, chat, command, input=lines)


def said(request: pb.GenerateRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.chat.messages]


async def test_the_conversation_is_kept(scripted_processor):
    bye = play(admitted(), delta(0, [1], "Bye"), ended(completion=1))
    scripted_processor.plays(hello, bye)
    result = await run(scripted_processor, "Hi\n\nGo away\n", "--max-tokens", "9")
    assert (result.exit_code, result.stdout) == (0, "Hello, world\nBye\n")
    first, second = scripted_processor.service.requests
    assert said(first) == [("user", "Hi")]
    assert said(second) == [("user", "Hi"), ("assistant", "Hello, world"), ("user", "Go away")]
    assert first.stopping.max_tokens == second.stopping.max_tokens == 9


async def test_commands(scripted_processor):
    lines = "one\n/system Be kind.\n/colour red\n/reset\ntwo\n/system\nthree\n/exit\nfour\n"
    result = await run(scripted_processor, lines, "--system", "Be brief.")
    assert result.exit_code == 0
    assert "unknown command /colour" in result.stderr
    assert [said(request) for request in scripted_processor.service.requests] == [
        [("system", "Be brief."), ("user", "one")],
        [("system", "Be kind."), ("user", "two")],
        [("user", "two"), ("assistant", "Hello, world"), ("user", "three")],
    ]


async def test_a_failed_answer_ends_a_pipe_with_an_error(scripted_processor):
    scripted_processor.plays(play(refusal(grpc.StatusCode.INTERNAL, "broken")), hello)
    result = await run(scripted_processor, "Hi\nagain\n")
    assert result.exit_code == 1
    assert result.stderr == "Error: INTERNAL: broken\n"
    assert len(scripted_processor.service.requests) == 1


async def test_a_ring_without_an_engine_is_named_as_such(scripted_processor):
    scripted_processor.service.model = None
    result = await run(scripted_processor, "Hi\n")
    assert result.exit_code == 1
    assert "Error: no engine is attached at " in result.stderr


async def test_a_model_without_a_template_is_refused(scripted_processor):
    scripted_processor.service.model.has_chat_template = False
    result = await run(scripted_processor, "Hi\n")
    assert result.exit_code == 1
    assert "model 'tiny' has no chat template" in result.stderr


async def test_a_model_that_pools_is_passed_over_and_refused_by_name(scripted_processor):
    embedder = pb.Model(name="embedder", max_model_len=64)
    embedder.pooling.dimensions = 4
    scripted_processor.service.listed_before.append(embedder)
    result = await run(scripted_processor, "Hi\n")
    assert (result.exit_code, result.stdout) == (0, "Hello, world\n")
    for args in (["--model", "embedder"], []):
        result = await run(scripted_processor, "Hi\n", *args)
        assert result.exit_code == 1
        assert "model 'embedder' generates no text" in result.stderr
        scripted_processor.service.model = None  # it is the only one


class Terminal:
    """``ringline chat`` in a process of its own, at a terminal of its own."""

    def __init__(self, address: str) -> None:
        self._here, there = pty.openpty()
        command = "from services.cli.commands.chat import chat; chat()"
        self._start = asyncio.create_subprocess_exec(
            sys.executable, "-c", command, "--address", address, stdin=there, stdout=there, stderr=there
        )
        self._there = there
        self._seen = ""

    async def __aenter__(self):
        self.process = await self._start
        os.close(self._there)
        os.set_blocking(self._here, False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        os.close(self._here)

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    async def expect(self, text: str) -> None:
        """Wait until the text appears after what was waited for before."""
        async with asyncio.timeout(60):
            while text not in self._seen:
                try:
                    self._seen += os.read(self._here, 65536).decode(errors="replace")
                except BlockingIOError:
                    await asyncio.sleep(0.01)
        self._seen = self._seen.split(text, 1)[1]


async def test_ctrl_c_stops_the_answer_and_not_the_conversation(scripted_processor):
    scripted_processor.plays(forever, play(refusal(grpc.StatusCode.INTERNAL, "broken")), hello)
    async with Terminal(scripted_processor.address) as terminal_:
        await terminal_.expect("> ")
        terminal_.type("Hi\n")
        await terminal_.expect("xxxxx")
        terminal_.process.send_signal(signal.SIGINT)
        await terminal_.expect("[stopped]")
        async with asyncio.timeout(60):
            await scripted_processor.service.cancelled.wait()
        terminal_.type("Fail\n")
        await terminal_.expect("Error: INTERNAL: broken")
        terminal_.type("And?\n")
        await terminal_.expect("Hello, world")
        terminal_.type("/exit\n")
        assert await asyncio.wait_for(terminal_.process.wait(), 60) == 0
    (_, answer), *rest = said(scripted_processor.service.requests[2])[1:]
    assert set(answer) == {"x"}
    assert rest == [("user", "And?")]


def calling(*parts: part_pb2.Part):
    first = admitted()
    first.admitted.output.parse.SetInParent()
    return play(first, delta(0, [1], "<…>", parts=parts), ended(completion=1))


async def test_the_results_of_calls_are_the_next_lines(scripted_processor, tmp_path):
    (tmp_path / "tools").write_text('[{"name": "add"}]')
    scripted_processor.service.model.capabilities.append("parse")
    thought = part_pb2.Part(reasoning="Hm")
    scripted_processor.plays(
        calling(thought, call("{}", "add"), call("{}", "now", 1)), calling(part_pb2.Part(content="7"))
    )
    result = await run(scripted_processor, "3+4?\n7\nnoon\nBye\n", "--tools", str(tmp_path / "tools"))
    assert (result.exit_code, result.stdout) == (0, "add({})\nnow({})\n7\n7\n")
    assert result.stderr == "Hm\n"
    _, second, third = scripted_processor.service.requests
    assert second.output.HasField("parse")
    assert second.chat.tools[0].name == "add"
    calls = [pb.ToolCall(id=f"id-{name}", name=name, arguments_json="{}") for name in ("add", "now")]
    messages = [
        pb.ChatMessage(role="user", content="3+4?"),
        pb.ChatMessage(role="assistant", reasoning="Hm", tool_calls=calls),
        pb.ChatMessage(role="tool", content="7", tool_call_id="id-add", name="add"),
        pb.ChatMessage(role="tool", content="noon", tool_call_id="id-now", name="now"),
    ]
    assert second.chat.messages[:] == messages
    assert said(third)[4:] == [("assistant", "7"), ("user", "Bye")]


async def test_a_result_that_is_missing_ends_a_pipe_with_an_error(scripted_processor):
    scripted_processor.plays(calling(call("{}", "add")))
    result = await run(scripted_processor, "3+4?\n")
    assert result.exit_code == 1
    assert result.stderr == "Error: the input ended before the result of add: expected a line with it\n"


async def test_at_a_terminal_the_result_of_a_call_is_asked_for(scripted_processor):
    scripted_processor.plays(calling(call("{}", "add")), hello)
    async with Terminal(scripted_processor.address) as terminal:
        await terminal.expect("> ")
        terminal.type("3+4?\n")
        await terminal.expect("result of add> ")
        terminal.type("\x04")
        await terminal.expect("> ")
        terminal.type("Hi\n")
        await terminal.expect("Hello, world")
    assert said(scripted_processor.service.requests[1]) == [("user", "Hi")]


async def test_pictures_go_with_the_next_message(scripted_processor, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    result = await run(scripted_processor, f"/image {path}\nHi\n")
    assert result.exit_code == 1
    assert "Error: /image: the model takes no pictures" in result.stderr
    scripted_processor.service.model.capabilities.append("media")
    result = await run(scripted_processor, f"/image '{path}'\nHi\nAnd now?\n/image {path}\n/reset\nHo\n")
    assert result.exit_code == 0
    assert "[a.png, 0 KiB: goes with your next message]" in result.stderr
    first, second, third = scripted_processor.service.requests
    assert [part.text or part.media.data for part in first.chat.messages[0].content_parts] == [b"\x89PNG", "Hi"]
    assert len(second.chat.messages[0].content_parts) == 2
    assert said(second)[1:] == [("assistant", "Hello, world"), ("user", "And now?")]
    assert said(third) == [("user", "Ho")]
    for line in ("/image", f"/image {tmp_path / 'none.png'}"):
        result = await run(scripted_processor, f"{line}\nHi\n")
        assert result.exit_code == 1
        assert "/image" in result.stderr
    monkeypatch.setattr("services.cli.commands.chat.MAX_PICTURE_FILE_BYTES", 3)
    result = await run(scripted_processor, f"/image {path}\n")
    assert result.exit_code == 1
    assert "a.png has more than 3 bytes" in result.stderr
