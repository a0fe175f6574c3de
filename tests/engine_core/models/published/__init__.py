"""What becomes of published checkpoints: their configurations, and the names of tensors in them, without weights."""

from tests.engine_core.models.published.encoders import ENCODERS
from tests.engine_core.models.published.entry import Published
from tests.engine_core.models.published.google import GEMMAS
from tests.engine_core.models.published.labs import LABS
from tests.engine_core.models.published.latents import LATENTS
from tests.engine_core.models.published.llama import LLAMAS
from tests.engine_core.models.published.mistral import MISTRALS
from tests.engine_core.models.published.quantized import QUANTIZED
from tests.engine_core.models.published.qwen import QWENS
from tests.engine_core.models.published.vision import VISION

GROUPS: dict[str, tuple[Published, ...]] = {
    "Llama": LLAMAS,
    "Qwen": QWENS,
    "Mistral": MISTRALS,
    "Gemma": GEMMAS,
    "DeepSeek, Kimi and GLM": LATENTS,
    "other laboratories": LABS,
    "with pictures or sound": VISION,
    "in few bits": QUANTIZED,
    "for embeddings and scores": ENCODERS,
}
PUBLISHED = tuple(each for group in GROUPS.values() for each in group)
