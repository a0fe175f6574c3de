"""Which vision model belongs to which multimodal class. A new family is one new file and a line here."""

from __future__ import annotations

from engine_core.models.vision_model import VisionModel
from engine_core.vision.deepseek_ocr import DeepseekOcrVision
from engine_core.vision.deepseek_ocr2 import DeepseekOcr2Vision, TransformersDeepseekOcr2Vision
from engine_core.vision.gemma3 import Gemma3Vision
from engine_core.vision.gemma4 import Gemma4Vision
from engine_core.vision.idefics3 import Idefics3Vision, SmolVLMVision
from engine_core.vision.qwen_vl import Qwen2_5VL, Qwen2VL, Qwen3_5, Qwen3_5Moe, Qwen3VL, Qwen3VLMoe

VISION_MODELS: dict[str, type[VisionModel]] = {
    "DeepseekOCR2ForCausalLM": DeepseekOcr2Vision,
    "DeepseekOCRForCausalLM": DeepseekOcrVision,
    "DeepseekOcr2ForConditionalGeneration": TransformersDeepseekOcr2Vision,
    "Gemma3ForConditionalGeneration": Gemma3Vision,
    "Gemma4ForConditionalGeneration": Gemma4Vision,
    "Idefics3ForConditionalGeneration": Idefics3Vision,
    "Qwen2VLForConditionalGeneration": Qwen2VL,
    "Qwen2_5_VLForConditionalGeneration": Qwen2_5VL,
    "Qwen3VLForConditionalGeneration": Qwen3VL,
    "Qwen3VLMoeForConditionalGeneration": Qwen3VLMoe,
    "Qwen3_5ForConditionalGeneration": Qwen3_5,
    "Qwen3_5MoeForConditionalGeneration": Qwen3_5Moe,
    "SmolVLMForConditionalGeneration": SmolVLMVision,
}
"""By the class around both, as config.json names it. The text model of a class that is not here is served alone."""
