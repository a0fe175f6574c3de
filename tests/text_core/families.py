"""Tokenizers in the forms that families publish, over the small vocabularies trained here.

What surrounds the vocabulary (normalizer, pre-tokenizer, post-processor, decoder, added tokens and their flags) and
what ``tokenizer_config.json`` says is as each family has it; the vocabulary is one of ``trained_tokenizers``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.text_core import chat_template_samples, family_templates
from tests.text_core.trained_tokenizers import byte_level, sentencepiece_bpe, tokenizer_json

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN = _CL100K.replace("{1,3}", "")
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True)
class Family:
    """A checkpoint's files, as far as text goes."""

    model_type: str
    """Of config.json: with ``tokenizer_class`` it decides what transformers makes of the files."""
    tokenizer: Callable[[], dict[str, Any]]
    """The content of ``tokenizer.json``."""
    config: Mapping[str, Any]
    """``tokenizer_config.json`` without the template."""
    template: str | None = None
    begins: tuple[str, ...] = ()
    """The special tokens that a text gets."""

    def files(self) -> dict[str, bytes]:
        contents = {
            "config.json": {"model_type": self.model_type},
            "tokenizer.json": self.tokenizer(),
            "tokenizer_config.json": self.config,
        }
        files = {name: json.dumps(content).encode() for name, content in contents.items()}
        return files | ({"chat_template.jinja": self.template.encode()} if self.template is not None else {})


def _with_tokens(spec: dict[str, Any], tokens: Sequence[str | dict[str, Any]]) -> dict[str, Any]:
    """Add tokens: special ones, or with their own flags."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    next_id = max([*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])]) + 1
    for token in tokens:
        own = {"content": token} if isinstance(token, str) else token
        spec["added_tokens"].append({"id": next_id} | flags | own)
        next_id += 1
    return spec


def _begin(spec: dict[str, Any], tokens: Sequence[str], *before: dict[str, Any]) -> dict[str, Any]:
    """A post-processor that puts tokens before a text."""
    ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
    first = [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]
    texts = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    template = {
        "type": "TemplateProcessing",
        "single": [*first, texts[0]],
        "pair": [*first, *texts],
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in tokens},
    }
    spec["post_processor"] = {"type": "Sequence", "processors": [*before, template]} if before else template
    return spec


_BYTES_ONLY = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def _bytes(
    tokens: Sequence[str | dict[str, Any]], *patterns: str, normalizer: Any = None, ignore_merges: bool = False
) -> dict[str, Any]:
    """A byte-level BPE whose words are split by one pattern after another, or by GPT-2's."""
    spec = json.loads(tokenizer_json(byte_level()))
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    if splits:
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*splits, _BYTES_ONLY]}
    spec |= {"normalizer": normalizer, "post_processor": _BYTES_ONLY | {"trim_offsets": False}}
    spec["model"]["ignore_merges"] = ignore_merges
    return _with_tokens(spec, tokens)


def _pieces(tokens: Sequence[str | dict[str, Any]], **parts: Any) -> dict[str, Any]:
    """A BPE of SentencePiece's kind; ``parts`` replaces what is around it."""
    return _with_tokens(json.loads(tokenizer_json(sentencepiece_bpe())) | parts, tokens)


def _gemma() -> dict[str, Any]:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    tokens = ["<pad>", "<eos>", "<bos>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"]
    tokens += ["<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>"]
    plain = {"content": "▁▁▁", "special": False}
    decoder = {"type": "Sequence", "decoders": decoders}
    spec = _pieces([*tokens, '<|"|>', plain], normalizer=replace, pre_tokenizer=split, decoder=decoder)
    return _begin(spec, ["<bos>"])


def _phi_3() -> dict[str, Any]:
    names = ("<|assistant|>", "<|system|>", "<|end|>", "<|user|>")
    stripping = [{"content": name, "rstrip": True} for name in names]
    return _pieces(["<|endoftext|>", *stripping], post_processor=None)


def _mistral(*, legacy: bool) -> dict[str, Any]:
    """``legacy``: a space before each part of a text, not only at its beginning."""
    tokens = ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
    tokens += ["[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
    first = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return _pieces(tokens) if legacy else _pieces(tokens, normalizer=None, pre_tokenizer=first)


def _glm() -> dict[str, Any]:
    tokens = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
    tokens += [{"content": content, "special": False} for content in ("<think>", "</think>", "<tool_call>")]
    return _begin(_bytes(tokens, _CL100K, ignore_merges=True), ["[gMASK]", "<sop>"], _BYTES_ONLY)


_DEEPSEEK_TOKENS = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    *({"content": content, "special": False, "normalized": True} for content in ("<｜User｜>", "<｜Assistant｜>")),
    "<｜tool▁calls▁begin｜>",
]
_HARMONY_TOKENS = ["<|startoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"]
_GRANITE_TOKENS = ["<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"]
_GPT_2 = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "errors": "replace"}
_FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
_LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "sp_model_kwargs": {}}
_S = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_QWEN_CONFIG = {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "bos_token": None, "unk_token": None}
_QWEN_CONFIG |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "split_special_tokens": False}


def _added(content: str) -> dict[str, Any]:
    """A token as older configurations write it."""
    flags = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", "content": content, **flags}


_QWEN_TOKENS = ["<|endoftext|>", *({"content": c, "special": False} for c in ("<tool_call>", "</tool_call>"))]
_QWEN_MODELS = {
    name: Family(
        name,
        lambda: _bytes(_QWEN_TOKENS, _QWEN, normalizer={"type": "NFC"}),
        _QWEN_CONFIG,
        chat_template_samples.CHATML,
    )
    for name in ("qwen2_moe", "qwen3_moe")
}
_DEEPSEEK_MODELS = {
    name: Family(
        name,
        lambda: _bytes(_DEEPSEEK_TOKENS, *_DEEPSEEK, normalizer={"type": "Sequence", "normalizers": []}),
        {
            "tokenizer_class": "LlamaTokenizerFast",
            "add_bos_token": True,
            "bos_token": _added("<｜begin▁of▁sentence｜>"),
            "eos_token": _added("<｜end▁of▁sentence｜>"),
            "unk_token": None,
        },
        family_templates.DEEPSEEK,
    )
    for name in ("deepseek_v2", "deepseek_v3")
}
_GLM_MODELS = {
    name: Family(
        name,
        _glm,
        _FAST | {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "remove_space": False},
        family_templates.GLM_4,
        ("[gMASK]", "<sop>"),
    )
    for name in ("glm4", "glm4_moe")
}
_GEMMA_CONFIG = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "bos_token": "<bos>", "eos_token": "<eos>"}
_GEMMA_CONFIG |= {"pad_token": "<pad>", "unk_token": "<unk>", "spaces_between_special_tokens": False}
_GEMMA_MODELS = {
    name: Family(name, _gemma, _GEMMA_CONFIG, template, ("<bos>",))
    for name, template in {
        "gemma2": family_templates.GEMMA,
        "gemma3_text": family_templates.GEMMA,
        "gemma4_text": family_templates.GEMMA_4,
    }.items()
}
_OLMO_MODELS = {
    name: Family(
        name,
        lambda: _bytes(["<|endoftext|>", "<|pad|>"], _CL100K),
        _GPT_2 | {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"},
        family_templates.OLMO,
    )
    for name in ("olmo2", "olmo3")
}

FAMILIES: dict[str, Family] = {
    **_QWEN_MODELS,
    **_DEEPSEEK_MODELS,
    **_GLM_MODELS,
    **_GEMMA_MODELS,
    **_OLMO_MODELS,
    "gpt_oss": Family(
        "gpt_oss",
        lambda: _bytes(_HARMONY_TOKENS, _O200K, ignore_merges=True),
        _FAST | {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "extra_special_tokens": {}},
        family_templates.HARMONY,
    ),
    "phi3": Family(
        "phi3",
        _phi_3,
        _LLAMA | _S | {"add_bos_token": False, "eos_token": "<|endoftext|>", "legacy": False},
        family_templates.PHI_3,
    ),
    "phi4": Family(
        "phi3",
        lambda: _bytes(["<|endoftext|>", {"content": "<|im_sep|>", "lstrip": True, "rstrip": True}], _CL100K),
        _GPT_2 | {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"},
        family_templates.PHI_4,
    ),
    "granite": Family(
        "granite",
        lambda: _bytes(_GRANITE_TOKENS, r"\p{N}", _QWEN),
        _GPT_2 | {"bos_token": "<|end_of_text|>", "eos_token": "<|end_of_text|>", "add_bos_token": False},
        family_templates.GRANITE,
    ),
    "smollm3": Family(
        "smollm3",
        lambda: _bytes(["<|begin_of_text|>", {"content": "<think>", "special": False}], _CL100K, ignore_merges=True),
        _FAST | {"bos_token": None, "eos_token": "<|im_end|>", "fast": False},
        family_templates.SMOLLM_3,
    ),
    "mixtral": Family(
        "mixtral", lambda: _mistral(legacy=True), _LLAMA | _S | {"legacy": True}, family_templates.MISTRAL, ("<s>",)
    ),
    "ministral": Family(
        "ministral", lambda: _mistral(legacy=False), _LLAMA | _S | {"legacy": False}, family_templates.MISTRAL, ("<s>",)
    ),
    "opt": Family(
        "opt",
        lambda: _begin(_bytes(["<pad>"]), ["</s>"]),
        _GPT_2
        | {"add_bos_token": True, "pad_token": "<pad>"}
        | {role: _added("</s>") for role in ("bos_token", "eos_token", "unk_token")},
        begins=("</s>",),
    ),
}
