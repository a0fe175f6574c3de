"""Which family prepares a model's pictures. A new family is one new module and its lines here."""

from __future__ import annotations

import json
from dataclasses import asdict

from text_core.pictures.base import FACTS, PictureFacts, PictureProcessor
from text_core.pictures.deepseek_ocr import DeepSeekOcr, DeepSeekOcr2
from text_core.pictures.gemma3 import Gemma3
from text_core.pictures.gemma4 import Gemma4
from text_core.pictures.idefics3 import Idefics3
from text_core.pictures.qwen_vl import QwenVL

PROCESSORS: dict[str, type[PictureProcessor]] = {
    "DeepseekOCRForCausalLM": DeepSeekOcr,
    "UnlimitedOCRForCausalLM": DeepSeekOcr,
    "UnlimitedOcrForConditionalGeneration": DeepSeekOcr,
    "DeepseekOCR2ForCausalLM": DeepSeekOcr2,
    "DeepseekOcr2ForConditionalGeneration": DeepSeekOcr2,
    "Gemma3ForConditionalGeneration": Gemma3,
    "Gemma4ForConditionalGeneration": Gemma4,
    "Gemma4UnifiedForConditionalGeneration": Gemma4,
    "Idefics3ForConditionalGeneration": Idefics3,
    "SmolVLMForConditionalGeneration": Idefics3,
    "Qwen2VLForConditionalGeneration": QwenVL,
    "Qwen2_5_VLForConditionalGeneration": QwenVL,
    "Qwen3VLForConditionalGeneration": QwenVL,
    "Qwen3VLMoeForConditionalGeneration": QwenVL,
    "Qwen3_5ForConditionalGeneration": QwenVL,
    "Qwen3_5MoeForConditionalGeneration": QwenVL,
}
"""By the multimodal class, as config.json names it."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    "architecture": str,
    "config": dict,
    "preprocessor": dict,
    "limit": int,
    "max_tokens": int,
    "special_tokens": dict,
}


def processor_of(facts: PictureFacts) -> PictureProcessor:
    """The processor of a model. Raises ``ValueError`` if its facts are not usable."""
    if (kind := PROCESSORS.get(facts.architecture)) is None:
        known = ", ".join(sorted(PROCESSORS))
        raise ValueError(f"{FACTS}: architecture {facts.architecture!r} has no known pictures; expected one of {known}")
    return kind(facts)


def parse_facts(content: bytes | str) -> PictureFacts:
    """The facts that an engine sent as JSON. Raises ``ValueError``."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{FACTS} is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.keys() - _TYPES.keys():
        raise ValueError(f"{FACTS} must be an object of {', '.join(_TYPES)}")
    for name, kind in _TYPES.items():
        if name in fields and (not isinstance(fields[name], kind) or isinstance(fields[name], bool)):
            raise ValueError(f"{FACTS}: {name} has the wrong type")
    if missing := _TYPES.keys() - fields.keys() - {"special_tokens"}:
        raise ValueError(f"{FACTS} lacks {', '.join(sorted(missing))}")
    return PictureFacts(**fields)


def write_facts(facts: PictureFacts) -> bytes:
    """As JSON: equal facts are equal bytes."""
    return json.dumps(asdict(facts), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
