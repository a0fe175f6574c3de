"""Resolves a request: prompt ids, defaults, and the messages for client, engine and detokenizer.

Pure, except that a request without a seed gets a random one. Runs in a worker thread: tokenizing takes time.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, part_pb2, sampling_pb2

from services.common.rpc.shared_messages import adapter_to_proto
from services.processor.admission.beam_resolution import check_beside_beams, resolve_beams, sampling_for_beams
from services.processor.admission.budget_resolution import resolve_budget
from services.processor.admission.constraint_resolution import engine_needs, resolve_constraint
from services.processor.admission.parse_resolution import call_id_seed, resolve_parse
from services.processor.admission.prompt_resolution import (
    Prompt,
    require_template,
    require_tokenizer,
    resolve_prompt,
)
from services.processor.admission.tool_resolution import resolve_tools
from services.processor.admission.validation import (
    check_candidates,
    check_model,
    check_prompt_length,
    check_request,
    check_token_ids,
    refuse,
)
from services.processor.media.chat_pictures import ChatPictures, check_resumed
from services.processor.pooling.purpose import check_generates
from services.processor.request import ResolvedRequest
from services.processor.served_models import ModelLimits, ServedModel
from services.ring.adapters import Adapter
from services.ring.identity import (
    ADAPTERS,
    ANSWER_STOPS,
    BEAM_SEARCH,
    CONTENT_TOKENS,
    MEDIA,
    NO_REPEAT_NGRAM,
    PARSE,
    REASONING_BUDGET,
    PeerId,
    check_requires,
)
from services.ring.prefixes import prefixes_of
from services.ring.routing_logic import Needs
from text_core.incremental_decoder import left_context
from text_core.parsing.formats import NONE, format_capabilities

_NEUTRAL = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
}
_MODEL_DEFAULTS = frozenset(engine_pb2.SamplingDefaults.DESCRIPTOR.fields_by_name)


def resolve_request(
    request: inference_pb2.GenerateRequest,
    served_model: ServedModel,
    tenant: str,
    reply_to: PeerId,
    traceparent: str = "",
    pictures: ChatPictures | None = None,
    adapter: Adapter | None = None,
) -> ResolvedRequest:
    """Check, tokenize and resolve; raises ``Refused`` naming the invalid field.

    ``reply_to``: this processor. ``traceparent``: trace context; empty if the request is not traced. ``pictures``: the
    chat's, prepared for this model. ``adapter``: that which the request names, in its field or by ``model``.
    """
    resolved = _resolve(request, served_model, pictures, adapter)
    submit = resolved.submit(tenant, traceparent)
    return ResolvedRequest(
        packed_admitted=resolved.admitted().SerializeToString(),
        packed_submit=submit.SerializeToString(),
        output_context=resolved.output_context(reply_to, traceparent).SerializeToString(),
        prompt_tokens=len(resolved.prompt.ids),
        num_choices=resolved.sampling.n,
        choices=resolved.resumed or dict.fromkeys(range(resolved.sampling.n), array("I")),
        is_resume=request.HasField("resume"),
        wants_prefill_progress=resolved.output.prefill_progress,
        prefixes=prefixes_of(
            resolved.prompt.ids,
            submit.cache_salt,
            served_model.model.block_size,
            [(place.offset, place.digest) for place in submit.media],
            b"" if adapter is None else adapter.key,
        ),
        num_prompt_logprobs=len(resolved.prompt.ids) - 1 if resolved.output.HasField("prompt_logprobs") else 0,
        numerics=request.resume.numerics,
        model=served_model.model,
        needs=Needs(resolved.engine_needs(), resolved.detokenizer_needs(), adapter),
        pictures={item.digest: item for _, item in resolved.prompt.places},
        media_tokens=resolved.prompt.media_tokens,
        beams=0 if resolved.beams is None else resolved.beams.width,
        max_output=resolved.stopping.max_tokens,
    )


def _resolve(
    request: inference_pb2.GenerateRequest,
    served_model: ServedModel,
    pictures: ChatPictures | None,
    adapter: Adapter | None,
) -> _Resolved:
    limits, model = served_model.limits, served_model.model
    if adapter is None:
        check_model(request.model, limits)
    check_generates(served_model)
    require_template(request, served_model)  # a better reason than capabilities that it would have
    check_requires(request.requires, served_model.capabilities)
    check_request(request, limits)
    tools = resolve_tools(request.chat)
    digests = [] if pictures is None else pictures.digests
    check_resumed(request, digests)
    _check_resumed_adapter(request, adapter)
    resolved_prompt = resolve_prompt(request, served_model, tools, pictures)
    prompt = resolved_prompt.ids
    check_prompt_length(len(prompt), limits)
    check_token_ids("prompt", prompt, limits)  # a tokenizer may have more tokens than the model
    prompt_digest = _digest_of(prompt)
    _check_resumed_prompt(request, prompt_digest)
    room = limits.max_model_len - len(prompt)
    resumed = _resumed(request, room, limits)
    beams = resolve_beams(request, served_model)
    given = request.sampling if beams is None else sampling_for_beams(request.sampling)
    sampling = resolve_sampling(given, model.default_sampling)
    if beams is None and not sampling.HasField("seed"):
        sampling.seed = secrets.randbits(64)
    stopping = _resolve_stopping(request.stopping, room, is_resume=request.HasField("resume"))
    output = _resolve_output(request.output)
    for field, words in (("stopping.stop", stopping.stop), ("stopping.bad_words", stopping.bad_words)):
        if words:
            require_tokenizer(served_model, field)
    if request.HasField("resume") and request.HasField("constraint"):  # Admitted's, which includes that of tools
        tools = replace(tools, calls=None, free_calls=None)
    parse = resolve_parse(request, served_model, prompt, tools)
    if parse is not None:
        require_tokenizer(served_model, "output.parse")
        output.parse.CopyFrom(parse)
    constraint = resolve_constraint(request, served_model, prompt, parse, tools)
    budget = resolve_budget(request, served_model, parse, constraint)
    bad_words = _bad_words(list(stopping.bad_words), served_model)
    check_candidates(sampling, stopping, bad_words, model.eos_token_ids, limits)
    resolved = _Resolved(
        request,
        served_model,
        resolved_prompt,
        prompt_digest,
        digests,
        resumed,
        sampling,
        stopping,
        output,
        parse,
        constraint,
        bad_words,
        budget,
        beams,
        adapter,
    )
    if beams is not None:
        check_beside_beams(
            request,
            has_form=constraint is not None,
            has_budget=budget is not None,
            stops_in_answer_only=resolved.stops_in_answer_only,
        )
    return resolved


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A request with every default filled in; builds its messages."""

    request: inference_pb2.GenerateRequest
    served_model: ServedModel
    prompt: Prompt
    prompt_digest: bytes
    media_digests: Sequence[bytes]
    """One for each picture that the client sent."""
    resumed: dict[int, array[int]]
    """Ids delivered before, by choice."""
    sampling: inference_pb2.SamplingParams
    stopping: inference_pb2.StoppingParams
    output: inference_pb2.OutputParams
    parse: part_pb2.ParseParams | None
    constraint: constraint_pb2.Constraint | None
    bad_words: Sequence[Sequence[int]]
    budget: engine_pb2.ReasoningBudget | None
    beams: sampling_pb2.BeamSearch | None
    adapter: Adapter | None

    @property
    def stops_in_answer_only(self) -> bool:
        """Whether stops count only after the reasoning, whose end only the detokenizer can tell."""
        stopping = self.stopping
        has_reasoning = self.parse is not None and self.parse.reasoning != NONE
        return has_reasoning and not stopping.stop_in_reasoning and bool(stopping.stop or stopping.stop_token_ids)

    def submit(self, tenant: str, traceparent: str) -> engine_pb2.Submit:
        """The engine's message."""
        request, stopping, output, model = self.request, self.stopping, self.output, self.served_model.model
        return engine_pb2.Submit(
            prompt_token_ids=self.prompt.ids,
            media=[engine_pb2.MediaPlace(digest=item.digest, offset=at) for at, item in self.prompt.places],
            sampling=_for_engine(self.sampling),
            bad_words=[sampling_pb2.TokenIds(ids=ids) for ids in self.bad_words],
            stop_token_ids=() if self.stops_in_answer_only else stopping.stop_token_ids,
            ignore_eos=stopping.ignore_eos,
            max_tokens=stopping.max_tokens,
            min_tokens=stopping.min_tokens,
            logprobs=output.logprobs if output.HasField("logprobs") else None,
            prompt_logprobs=output.prompt_logprobs if output.HasField("prompt_logprobs") else None,
            priority=request.priority,
            tenant=tenant,
            cache_salt=cache_salt(tenant, request.cache_salt),
            traceparent=traceparent,
            requires=_engine_requires(request.requires, model, self.engine_needs()),
            model_digest=model.model_digest,
            constraint=self.constraint,
            adapter=adapter_to_proto(self.adapter),
            parse=self.parse if self.constraint is not None else None,
            reasoning_budget=self.budget,
            beam_search=self.beams,
            speculation=request.speculation if request.HasField("speculation") else None,
        )

    def output_context(self, reply_to: PeerId, traceparent: str) -> detokenizer_pb2.OutputContext:
        """The detokenizer's message, by way of the engine."""
        stopping, skips = self.stopping, self.output.skip_special_tokens
        pieces = self.served_model.tokenizer.pieces(skip_special_tokens=skips)
        return detokenizer_pb2.OutputContext(
            reply_to=reply_to.name,
            reply_incarnation=reply_to.incarnation,
            prompt_tail=left_context(pieces, self.prompt.ids),
            stop_strings=stopping.stop,
            include_stop_str_in_output=stopping.include_stop_str_in_output,
            skip_special_tokens=skips,
            min_tokens=stopping.min_tokens,
            tokenizer_digest=self.served_model.model.tokenizer_digest,
            traceparent=traceparent,
            parse=self.parse,
            call_id_seed=call_id_seed(self.prompt.ids, self.sampling.seed) if self.parse is not None else b"",
            stops_in_answer_only=self.stops_in_answer_only,
            stop_token_ids=stopping.stop_token_ids if self.stops_in_answer_only else (),
        )

    def admitted(self) -> inference_pb2.Admitted:
        """The client's message: with the delivered ids, all that a resume needs."""
        return inference_pb2.Admitted(
            prompt_tokens=len(self.prompt.ids),
            prompt_token_ids=self.prompt.ids if self.output.return_prompt_token_ids else (),
            sampling=self.sampling,
            stopping=self.stopping,
            output=self.output,
            model=self.served_model.model.model,
            model_digest=self.served_model.model.model_digest,
            constraint=self.constraint,
            media_digests=self.media_digests,
            prompt_digest=self.prompt_digest,
            beam_search=self.beams,
            adapter=adapter_to_proto(self.adapter),
        )

    def engine_needs(self) -> frozenset[str]:
        """Capabilities without which an engine would draw other tokens than were asked for."""
        asked = {
            REASONING_BUDGET: self.budget is not None,
            MEDIA: bool(self.prompt.places),
            NO_REPEAT_NGRAM: self.sampling.HasField("no_repeat_ngram"),
            BEAM_SEARCH: self.beams is not None,
            ADAPTERS: self.adapter is not None,
        }
        return engine_needs(self.constraint, self.parse).union(name for name, needed in asked.items() if needed)

    def detokenizer_needs(self) -> frozenset[str]:
        """Capabilities without which a detokenizer would ignore what was asked for."""
        asked = {
            PARSE: self.parse is not None,
            CONTENT_TOKENS: self.parse is not None and self.parse.content_tokens,
            ANSWER_STOPS: self.stops_in_answer_only,
            BEAM_SEARCH: self.beams is not None,  # it tells the scores
        }
        formats = () if self.parse is None else format_capabilities(self.parse.tool_calls, self.parse.reasoning)
        return frozenset((*(name for name, needed in asked.items() if needed), *formats))


def cache_salt(tenant: str, client_salt: str) -> bytes:
    """The prefix cache's salt: only requests of the same tenant and salt share blocks. Empty without either."""
    if not tenant and not client_salt:
        return b""
    digest = hashlib.blake2b(digest_size=16)
    for part in (tenant.encode(), client_salt.encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _digest_of(ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("I", ids).tobytes(), digest_size=16).digest()


def _check_resumed_prompt(request: inference_pb2.GenerateRequest, prompt_digest: bytes) -> None:
    """A text or chat that is resumed must make the prompt again that it began with."""
    if (given := request.resume.prompt_digest) and given != prompt_digest:
        problem = (
            "the prompt has other tokens than the one that the request began with: expected an equal prompt; its chat "
            "template may write the time or the date, so send the request anew"
        )
        raise refuse("resume.prompt_digest", problem)


def _check_resumed_adapter(request: inference_pb2.GenerateRequest, adapter: Adapter | None) -> None:
    """With another adapter, the rest of an answer would not belong to its beginning."""
    began = any(choice.token_ids for choice in request.resume.choices)
    if adapter is not None and began and not request.resume.adapter_digest:
        raise refuse("resume.adapter_digest", "absent: a resume needs the digest of the adapter that Admitted returned")
    if adapter is None and request.resume.adapter_digest:
        raise refuse("resume.adapter_digest", "set, but the request names no adapter: expected adapter, too")


def _resumed(request: inference_pb2.GenerateRequest, room: int, limits: ModelLimits) -> dict[int, array[int]]:
    """A resumed request's ids, by choice. ``room``: tokens that fit into the context after the prompt."""
    choices = {resumed.choice: array("I", resumed.token_ids) for resumed in request.resume.choices}
    if any(len(ids) > room for ids in choices.values()):
        raise refuse("resume", f"prompt and resumed ids are longer than the context of {limits.max_model_len} tokens")
    return choices


def resolve_sampling(
    given: inference_pb2.SamplingParams, model: engine_pb2.SamplingDefaults
) -> inference_pb2.SamplingParams:
    """What is ``given``, with every default filled in but the seed's, which is drawn for each request."""
    resolved = inference_pb2.SamplingParams()
    resolved.CopyFrom(given)
    for name, neutral in _NEUTRAL.items():
        if not given.HasField(name):  # type: ignore[arg-type]
            has_default = name in _MODEL_DEFAULTS and model.HasField(name)  # type: ignore[arg-type]
            setattr(resolved, name, getattr(model, name) if has_default else neutral)
    return resolved


def _engine_requires(given: Sequence[str], model: engine_pb2.GetModelResponse, needs: frozenset[str]) -> list[str]:
    """Capabilities that the engine must have: those of a constraint even if the client does not list them."""
    names = [name for name in given if name in model.capabilities]
    return [*names, *sorted(needs.difference(names))]


def _for_engine(sampling: inference_pb2.SamplingParams) -> engine_pb2.SamplingParams:
    """The resolved parameters that the engine needs."""
    params = engine_pb2.SamplingParams(
        **{name: getattr(sampling, name) for name in (*_NEUTRAL, "seed")},
        allowed_token_ids=sampling.allowed_token_ids,
        no_repeat_ngram=sampling.no_repeat_ngram if sampling.HasField("no_repeat_ngram") else None,
    )
    params.logit_bias.update(sampling.logit_bias)
    return params


def _resolve_stopping(
    given: inference_pb2.StoppingParams, room: int, *, is_resume: bool
) -> inference_pb2.StoppingParams:
    """``room``: tokens that fit into the context after the prompt."""
    resolved = inference_pb2.StoppingParams()
    resolved.CopyFrom(given)
    resolved.max_tokens = given.max_tokens if given.HasField("max_tokens") else room
    if not is_resume:  # a resumed request keeps its limit: an earlier release may have admitted it unclipped
        resolved.max_tokens = min(resolved.max_tokens, room)
    resolved.min_tokens = given.min_tokens
    if resolved.min_tokens > resolved.max_tokens:
        problem = (
            f"{given.min_tokens} is out of range: expected at most {room}, the room in the context after the prompt"
        )
        raise refuse("stopping.min_tokens", problem)
    resolved.include_stop_str_in_output = given.include_stop_str_in_output
    resolved.ignore_eos = given.ignore_eos
    resolved.stop_in_reasoning = given.stop_in_reasoning
    return resolved


def _resolve_output(given: inference_pb2.OutputParams) -> inference_pb2.OutputParams:
    resolved = inference_pb2.OutputParams()
    resolved.CopyFrom(given)
    resolved.skip_special_tokens = given.skip_special_tokens if given.HasField("skip_special_tokens") else True
    resolved.return_prompt_token_ids = given.return_prompt_token_ids
    resolved.prefill_progress = given.prefill_progress
    return resolved


def _bad_words(words: list[str], served_model: ServedModel) -> list[list[int]]:
    """The ids of each word, at the beginning of a text and after a space.

    The form after a space is left out if it is the other one behind a token for the space.
    """
    sequences: list[list[int]] = []
    for word in words:
        bare = served_model.tokenizer.encode(word.lstrip(), add_special_tokens=False)
        spaced = served_model.tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        if bare:
            sequences.append(bare)
        if spaced and (not bare or bare not in (spaced, spaced[1:])):
            sequences.append(spaced)
    return sequences
