"""A model that cannot run is refused with the reason and, where there is one, the way out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine_core.errors import UnsupportedModelError
from engine_core.models.fallback.rules import MIXTURES, TESTED
from engine_core.models.kinds import kind_of
from engine_core.models.registry import ARCHITECTURES, choose_model

LONGEST = 260
FAMILIES = {
    ("olmo_hybrid", "OlmoHybridForCausalLM"): "a hybrid of attention and other layers (layer_types: linear_attention)",
    ("mamba", "MambaForCausalLM"): "a model of state-space layers",
    ("rwkv", "RwkvForCausalLM"): "a model of recurrent layers",
    ("jamba", "JambaForCausalLM"): "a hybrid of attention and state-space layers",
    ("falcon_h1", "FalconH1ForCausalLM"): "a hybrid of attention and state-space layers",
    ("fnet", "FNetForMaskedLM"): "an encoder",
    ("longformer", "LongformerModel"): "an encoder",
    ("t5", "T5ForConditionalGeneration"): "an encoder-decoder",
    ("bart", "BartForCausalLM"): "an encoder-decoder",
    ("whisper", "WhisperForConditionalGeneration"): "a speech model",
    ("llava", "LlavaForConditionalGeneration"): "a multimodal model (vision_config)",
    ("mistral3", "Mistral3ForConditionalGeneration"): "its text model alone (MistralForCausalLM) runs",
    ("gemma3", "Gemma3ForConditionalGeneration"): "its text model alone (Gemma3ForCausalLM) runs",
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"): "a multimodal model (vision_config)",
    ("llama", "LlamaForSequenceClassification"): "a classifier or reward model",
    ("qwen3", "Qwen3Model"): "such as one for embeddings; a checkpoint of Qwen3ForCausalLM runs",
    ("dbrx", "DbrxForCausalLM"): "a mixture of experts (moe_num_experts=4)",
    ("jetmoe", "JetMoeForCausalLM"): "a mixture of experts (num_local_experts",
    ("gpt2", "GPT2LMHeadModel"): "not named …ForCausalLM",
    ("llama", "LlamForCausalLM"): "it may be misspelt, as model_type is that of LlamaForCausalLM",
    ("mixtral", "MixtrallForCausalLM"): "it may be misspelt, as model_type is that of MixtralForCausalLM",
    ("xlstm", "xLSTMForCausalLM"): "a model of recurrent layers (return_last_states)",
    ("qwen2_5_omni", "Qwen2_5OmniForConditionalGeneration"): "a multimodal model (thinker_config",
    ("mixtral", "MixtralModel"): "a mixture of experts (num_local_experts=8)",
}


@pytest.mark.parametrize(("model_type", "architecture"), FAMILIES)
def test_a_refusal_says_what_the_model_is(model_type: str, architecture: str) -> None:
    fields = CONFIG_MAPPING[model_type]().to_dict()
    with pytest.raises(UnsupportedModelError, match=re.escape(FAMILIES[model_type, architecture])) as refused:
        choose_model(architecture, fields, "auto")
    assert str(refused.value).startswith(f"architecture {architecture!r} is not supported: ")
    assert len(str(refused.value)) < LONGEST


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("LLaDAModelLM", {"auto_map": {"AutoModel": "m.LLaDA"}}, "it is a diffusion language model"),
        ("Qwen9ForCausalLM", {"model_type": "qwen9"}, "does not know it; it may be misspelt, or newer"),
        ("Qwen9Model", {"model_type": "qwen9"}, "does not know it; it may be misspelt, or newer"),
        ("FooForCausalLM", {"auto_map": {"AutoModelForCausalLM": "m.Foo"}}, "it needs code from its checkpoint"),
        (
            "LingForCausalLM",
            {"auto_map": {"AutoConfig": "m.Ling"}, "num_experts": 8},
            "it needs code from its checkpoin",
        ),
        ("OlmoHybridForCausalLM", {"linear_num_key_heads": 16, "num_attention_heads": 8, "num_experts": 4}, "a hybrid"),
        ("FooForConditionalGeneration", {"text_config": 5, "layer_types": [{}]}, "a multimodal model (text_config)"),
        ("FooForCausalLM", {"layer_types": 3, "num_experts": ["many"] * 99}, "a mixture of experts (num_experts),"),
    ],
)
def test_raw_fields_are_enough(architecture: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(message)):
        choose_model(architecture, fields, "auto")


def test_experts_are_not_given_to_the_fallback() -> None:
    with pytest.raises(UnsupportedModelError, match="a model of its own, as --model-impl auto chooses"):
        choose_model("MixtralForCausalLM", {"num_local_experts": 8}, "transformers")


def test_what_runs_is_of_no_other_kind() -> None:
    """Only mixtures of experts and hybrids may be among Ringline's own models, and among the fallback's those mixtures
    that are named.
    """
    types = {name: kind for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
    kinds = {name: kind_of(name, CONFIG_MAPPING[types[name]]().to_dict()) for name in TESTED}
    assert {name for name, kind in kinds.items() if kind is not None} == set(MIXTURES)
    assert all(str(kinds[name]).startswith("a mixture of experts") for name in MIXTURES)
    own = {name: kind_of(name, CONFIG_MAPPING[model.model_type]().to_dict()) for name, model in ARCHITECTURES.items()}
    del own["Llama4ForCausalLM"]  # chunks, which the fallback does not have
    hybrids = {name for name, kind in own.items() if kind is not None and "run only where Ringline has a model" in kind}
    del own["GraniteMoeHybridForCausalLM"]  # of whose layers any may be state-space layers
    assert {
        "Mamba2ForCausalLM",
        "NemotronHForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
    } <= hybrids
    others = [kind for name, kind in own.items() if name not in hybrids]
    assert all(kind is None or kind.startswith("a mixture of experts") for kind in others)
