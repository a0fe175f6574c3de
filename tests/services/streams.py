"""Reading front-door streams in tests: what each request showed, with the protocol's rules checked on the way."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import output_pb2


@dataclass
class Shown:
    """All that one request showed its client."""

    admitted: inference_pb2.Admitted | None = None
    ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    deltas: dict[int, list[inference_pb2.Delta]] = field(default_factory=dict)
    prompt_logprobs: output_pb2.Logprobs | None = None
    progress: list[inference_pb2.PrefillProgress] = field(default_factory=list)
    ends: dict[int | None, inference_pb2.Terminal] = field(default_factory=dict)

    def take(self, response: inference_pb2.GenerateResponse) -> None:
        """Add one event, in the order the protocol allows."""
        assert None not in self.ends, "nothing follows the terminal of a refused request"
        match response.WhichOneof("event"):
            case "admitted":
                assert self.admitted is None
                self.admitted = response.admitted
            case "delta":
                self._delta(response.delta)
            case "terminal":
                self._end(response.terminal)
            case "prefill":
                self.progress.append(response.prefill)
            case "prompt_logprobs":
                assert not self.deltas, "before any delta"
                self.prompt_logprobs = self.prompt_logprobs or output_pb2.Logprobs()
                assert response.prompt_logprobs_offset == len(self.prompt_logprobs.logprobs), "gapless"
                self.prompt_logprobs.MergeFrom(response.prompt_logprobs)
            case other:
                raise AssertionError(other)

    def _delta(self, delta: inference_pb2.Delta) -> None:
        assert self.admitted is not None
        assert delta.choice not in self.ends, "nothing follows a terminal"
        ids = self.ids.setdefault(delta.choice, [])
        assert delta.first_position == len(ids), "gapless"
        ids += delta.token_ids
        self.texts[delta.choice] = self.texts.get(delta.choice, "") + delta.text
        self.logprobs.setdefault(delta.choice, []).extend(delta.logprobs.logprobs)
        self.deltas.setdefault(delta.choice, []).append(delta)

    def _end(self, end: inference_pb2.Terminal) -> None:
        choice = end.choice if end.HasField("choice") else None
        assert choice not in self.ends, "one terminal per choice"
        assert not any(earlier.HasField("usage") for earlier in self.ends.values()), "the usage is the last word"
        self.ends[choice] = end

    @property
    def usage(self) -> inference_pb2.Usage:
        (usage,) = [end.usage for end in self.ends.values() if end.HasField("usage")]
        return usage

    @property
    def complete(self) -> bool:
        return None in self.ends or any(end.HasField("usage") for end in self.ends.values())


LONG_CHOICES, LONG_TOKENS = 32, 1500


def long_work(name: str = "") -> inference_pb2.GenerateRequest:
    """A request that takes an engine many seconds, whatever the machine: what is done to it meanwhile finds it live,
    even where this process stands still for a while.
    """
    request = ask(name, max_tokens=LONG_TOKENS, n=LONG_CHOICES)
    request.stopping.ignore_eos = True
    return request


async def generate(front, request: inference_pb2.GenerateRequest, shown: Shown | None = None) -> Shown:
    """One Generate call, to its end; what it showed is in ``shown``, also when it fails."""
    shown = shown or Shown()
    async for response in front.Generate(request, timeout=250):
        assert response.request_id == request.request_id
        shown.take(response)
    return shown


async def read_session(
    frames: AsyncIterable[inference_pb2.SessionResponse],
    names: Iterable[str],
    before: Mapping[str, Shown] | None = None,
) -> dict[str, Shown]:
    """Read a session until every named request is complete; ``before`` is what they had shown already."""
    shown = {name: (before or {}).get(name) or Shown() for name in names}
    async for frame in frames:
        for response in frame.responses:
            shown[response.request_id].take(response)
        if all(one.complete for one in shown.values()):
            return shown
    raise AssertionError(f"the session ended without {[name for name, one in shown.items() if not one.complete]}")


def ask(
    name: str = "", text: str = "Once upon a time", max_tokens: int = 16, **sampling
) -> inference_pb2.GenerateRequest:
    """A request for text; ``sampling`` are fields of SamplingParams."""
    request = inference_pb2.GenerateRequest(request_id=name, text=text)
    request.stopping.max_tokens = max_tokens
    for key, value in sampling.items():
        setattr(request.sampling, key, value)
    return request
