"""vLLM's contract at the running ring, by its own stub: equal answers, and the tokenizer."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import ringline
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from tests.ring import MODEL, Ring
from text_core.tokenizer_files import read_tokenizer_files

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def channel(ring: Ring) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(ring.address) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    return vllm_engine_pb2_grpc.VllmEngineStub(channel)


@pytest.fixture(scope="module")
def native(ring: Ring) -> Iterator[ringline.Client]:
    with ringline.Client(ring.address) as client:
        yield client


def answers(stub: Any, ids: list[int], *, stream: bool, **params: Any) -> tuple[list[Any], list[Any]]:
    """The chunks and the ends of a request."""
    asked = vllm_engine_pb2.GenerateRequest(
        request_id="r", tokenized={"input_ids": ids}, stream=stream, sampling_params=params
    )
    responses = list(stub.Generate(asked, timeout=60))
    chunks = [response.chunk for response in responses if response.HasField("chunk")]
    return chunks, [response.complete for response in responses if response.HasField("complete")]


def test_answers_are_those_of_the_native_contract(stub: Any, native: ringline.Client) -> None:
    ids = list(native.tokenize(PROMPT).token_ids)
    asked = {"max_tokens": 12, "seed": 5, "n": 2, "logprobs": 2}
    plain = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}  # not the model's own
    expected = native.generate(PROMPT, temperature=1.0, prompt_logprobs=1, **plain, **asked)
    chunks, ends = answers(stub, ids, stream=True, prompt_logprobs=1, **asked)
    for choice in expected.choices:
        mine = [chunk for chunk in chunks if chunk.index == choice.index]
        assert [token for chunk in mine for token in chunk.token_ids] == list(choice.token_ids)
        scores = [score for chunk in mine for score in chunk.output_logprobs.token_logprobs]
        assert scores == pytest.approx([token.logprob for token in choice.logprobs or ()], abs=1e-6)
        assert list(mine[0].input_logprobs.token_ids) == ids
        values = [one.value for one in mine[0].input_logprobs.token_logprobs[1:]]
        assert values == pytest.approx([one.logprob for one in expected.prompt_logprobs or () if one], abs=1e-6)
    assert sorted(end.index for end in ends) == [0, 1]
    assert {(end.prompt_tokens, end.completion_tokens) for end in ends} == {(len(ids), 12)}
    chunks, ends = answers(stub, ids, stream=False, **asked)
    assert not chunks
    assert {end.index: list(end.output_ids) for end in ends} == {c.index: list(c.token_ids) for c in expected.choices}
    assert {end.finish_reason for end in ends} == {"length"}


def test_cached_tokens_stops_and_text(stub: Any, native: ringline.Client) -> None:
    ids = list(native.tokenize(PROMPT * 20).token_ids)
    for _ in range(2):
        chunks, (end,) = answers(stub, ids, stream=True, max_tokens=2, temperature=0.0)
    assert end.cached_tokens == chunks[0].cached_tokens > 0
    text = vllm_engine_pb2.GenerateRequest(text=PROMPT, sampling_params={"temperature": 0.0, "stop": ["happy"]})
    (response,) = stub.Generate(text, timeout=60)
    expected = native.generate(PROMPT, temperature=0.0, stop=["happy"])
    assert list(response.complete.output_ids) == list(expected.token_ids)
    assert (response.complete.finish_reason, response.complete.matched_stop_str) == ("stop", "happy")


def test_the_tokenizer_comes_from_the_checkpoint(stub: Any, native: ringline.Client) -> None:
    chunks = list(stub.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=60))
    with zipfile.ZipFile(io.BytesIO(b"".join(chunk.data for chunk in chunks))) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if name != "config.json"}
    assert found == read_tokenizer_files(MODEL)
    info = stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest(), timeout=60)
    assert info.served_model_name == native.models()[0].name
    assert stub.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=60).loads[0].max_total_num_tokens > 0
    assert stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest(), timeout=60).healthy


def test_it_passes_for_no_other_engine(channel: grpc.Channel) -> None:
    """Gateways try SGLang's contract first."""
    call = channel.unary_unary("/sglang.grpc.scheduler.SglangScheduler/HealthCheck")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
