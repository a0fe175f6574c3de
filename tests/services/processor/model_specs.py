"""A small model for tests of admission: every byte a token, a few words, special tokens and a chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

from ringline.engine.v1 import engine_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from engine_core.config import ModelSpec
from services.processor.checked_grammars import CheckedGrammars
from services.processor.served_models import ModelLimits, ServedModel, ServedModels, TextCodec
from services.ring.model_generations import Generation
from text_core.chat_templates import ChatTemplates
from text_core.grammar.checker import GrammarChecker
from text_core.tokenizer import Tokenizer as TextTokenizer

MAX_MODEL_LEN = 48
MAX_LOGPROBS = 20
EOS_TEXT = "</s>"
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message must be the first') }}"
    "{% elif m.role == 'owner' %}{{ raise_exception('who?') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if tools %}<{{ tools | tojson }}>{% endif %}{{ mood }}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@cache
def files() -> dict[str, bytes]:
    """The tokenizer's files."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("Ġ", "a"), ("c", "d")]
    tokens += ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken(EOS_TEXT, special=True)])
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[bos])
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": EOS_TEXT, "chat_template": TEMPLATE}).encode(),
    }


@cache
def tokenizer() -> TextTokenizer:
    return TextTokenizer.from_files(files())


def spec(**defaults: float) -> ModelSpec:
    """The model as the engine knows it."""
    eos = tokenizer().token_id(EOS_TEXT)
    assert eos is not None
    return ModelSpec("m", "A", tokenizer().vocab_size, MAX_MODEL_LEN, (eos,), "float32", defaults)


def served_model(**defaults: float) -> ServedModel:
    """The same model as the processor knows it; ``defaults`` are its own sampling parameters."""
    model = spec()
    sampling = engine_pb2.SamplingDefaults()
    for name, value in defaults.items():
        setattr(sampling, name, value)
    described = engine_pb2.GetModelResponse(
        model=model.name,
        model_digest="model",
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        tokenizer_digest=tokenizer().fingerprint(),
        default_sampling=sampling,
        max_logprobs=MAX_LOGPROBS,
    )
    limits = ModelLimits(model.name, model.vocab_size, model.max_model_len, MAX_LOGPROBS)
    return ServedModel(described, tokenizer(), ChatTemplates.from_files(files()), limits, grammars())


@cache
def grammars() -> CheckedGrammars:
    model = spec()
    return CheckedGrammars(GrammarChecker(tokenizer(), model.vocab_size, model.eos_token_ids))


@cache
def codec() -> TextCodec:
    return TextCodec(tokenizer(), ChatTemplates.from_files(files()))


def learned(
    model: engine_pb2.GetModelResponse | None = None,
    max_generations: int = 4,
    preferred: Callable[[], Sequence[Generation]] = list,
) -> ServedModels:
    """The models of a processor that has learned one."""
    models = ServedModels(max_generations, preferred)
    models.add(model or served_model().model, codec())
    return models
