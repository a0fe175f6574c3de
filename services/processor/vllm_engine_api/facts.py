"""Responses of vLLM's API that describe the model, its tokenizer, the server and its load."""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from ringline.engine.v1 import engine_pb2
from smg_grpc_proto import vllm_engine_pb2
from smg_grpc_proto.generated import common_pb2

from services.processor.linked_peers import LinkedPeers
from services.processor.served_models import ServedModel

TOKENIZER_PATH = "grpc:GetTokenizer"
"""Neither a path nor a possible hub name: SMG looks for the tokenizer there first, and only then calls
``GetTokenizer``. Without any path it does not look at all."""
_CHUNK_BYTES = 64 << 10
_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_RATE_INTERVAL = 1.0
"""Minimum seconds over which generation throughput is measured."""


def model_info(served: ServedModel) -> Any:
    """``GetModelInfoResponse``."""
    model = served.model
    defaults = {
        name: round(getattr(model.default_sampling, name), 7)
        for name in _SAMPLING_DEFAULTS
        if model.default_sampling.HasField(name)  # type: ignore[arg-type]
    }
    return vllm_engine_pb2.GetModelInfoResponse(
        is_generation=not served.pools,
        max_context_length=model.max_model_len,
        max_req_input_len=model.max_model_len,
        vocab_size=model.vocab_size,
        served_model_name=model.model,
        tokenizer_path=TOKENIZER_PATH,
        architectures=[model.architecture],
        eos_token_ids=model.eos_token_ids,
        default_sampling_params_json=json.dumps(defaults, separators=(",", ":")) if defaults else "",
    )


class PackedTokenizer:
    """The last requested model's tokenizer files as a ZIP, whose bytes calls in progress share.

    Its ``config.json`` names every eos token; other files need not.
    """

    def __init__(self) -> None:
        self._packed_for: tuple[str, str, tuple[int, ...]] | None = None
        """What the ZIP depends on; not the model itself, which must be freed once replaced."""
        self._data, self._sha256 = b"", ""

    def chunks(self, served: ServedModel) -> Iterator[Any]:
        """``GetTokenizerChunk`` messages; the last has the SHA-256 of all data."""
        model = served.model
        key = model.model_digest, model.tokenizer_digest, tuple(model.eos_token_ids)
        if self._packed_for != key:
            self._packed_for, self._data = key, _packed(served)
            self._sha256 = hashlib.sha256(self._data).hexdigest()
        data, sha256 = self._data, self._sha256
        for start in range(0, len(data), _CHUNK_BYTES):
            end = start + _CHUNK_BYTES
            yield common_pb2.GetTokenizerChunk(data=data[start:end], sha256=sha256 if end >= len(data) else "")


def _packed(served: ServedModel) -> bytes:
    model, packed = served.model, io.BytesIO(served.tokenizer_archive)
    with zipfile.ZipFile(packed, "a") as archive:
        config = {"architectures": [model.architecture], "eos_token_id": list(model.eos_token_ids)}
        archive.writestr(zipfile.ZipInfo("config.json"), json.dumps(config))
    return packed.getvalue()


class ServerFacts:
    """The server as one engine: the sum of the linked ones."""

    def __init__(self, peers: LinkedPeers) -> None:
        self._peers = peers
        self._started_at = time.monotonic()
        self._generated = 0
        self._generated_at = self._started_at
        self._tokens_per_second = 0.0
        self.last_request_at = 0.0
        """Seconds since 1970."""

    def server_info(self, served: ServedModel, active_requests: int) -> Any:
        """``GetServerInfoResponse``."""
        model = served.model
        return vllm_engine_pb2.GetServerInfoResponse(
            active_requests=active_requests,
            last_receive_timestamp=self.last_request_at,
            uptime_seconds=time.monotonic() - self._started_at,
            server_type="vllm-grpc",
            data_parallel_size=1,
            block_size=model.block_size,
            model_dtype=f"torch.{model.dtype}",
            max_num_seqs=model.max_num_seqs * max(1, len(self._peers.engines)),
            constrained_decoding_start="first_token",
        )

    def loads(self, served: ServedModel | None, waiting_here: int) -> Any:
        """``GetLoadsResponse``. ``waiting_here``: requests that wait for an engine at this processor."""
        loads = [engine.load for engine in self._peers.engines.values()]
        block_size, max_num_seqs = (served.model.block_size, served.model.max_num_seqs) if served else (0, 0)
        running = sum(load.running_choices for load in loads)
        waiting = sum(load.waiting_requests for load in loads) + waiting_here
        used, total = sum(load.blocks_used for load in loads), sum(load.blocks_total for load in loads)
        queries = sum(load.prefix_queries for load in loads)
        most = max_num_seqs * len(loads)
        response = vllm_engine_pb2.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(), version=version("ringline-server"), dp_rank_count=1
        )
        response.loads.add(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_total_reqs=running + waiting,
            num_used_tokens=used * block_size,
            max_total_num_tokens=total * block_size,
            token_usage=used / total if total else 0.0,
            gen_throughput=self._throughput(loads),
            cache_hit_rate=sum(load.prefix_hits for load in loads) / queries if queries else 0.0,
            utilization=running / most if most else 0.0,
            max_running_requests=most,
            num_waiting_uncached_tokens=sum(load.waiting_tokens for load in loads),
        )
        return response

    def _throughput(self, loads: list[engine_pb2.Load]) -> float:
        """Tokens per second since an earlier call; a restarted engine counts from 0 again."""
        now, generated = time.monotonic(), sum(load.generated_tokens for load in loads)
        if (seconds := now - self._generated_at) >= _RATE_INTERVAL:
            self._tokens_per_second = max(0, generated - self._generated) / seconds
            self._generated, self._generated_at = generated, now
        return self._tokens_per_second
