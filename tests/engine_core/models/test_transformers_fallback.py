"""The fallback: dense decoders of transformers with the engine's attention, cache and layers, and what it refuses.

All of its families go through test_against_transformers.py and test_transformers_parity.py, too (`make test-models`).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PretrainedConfig, masking_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.llm import LLM
from engine_core.models.fallback.model import TransformersForCausalLM
from engine_core.models.fallback.rules import TESTED
from engine_core.models.fallback.trial import _window_of
from engine_core.models.registry import ARCHITECTURES
from engine_core.progress import StartupProgress
from engine_core.request import SamplingParams
from tests.engine_core.engines import StageDetails, run, started
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families import FALLBACK, configuration, dense
from tests.engine_core.models.greedy import assert_greedy
from tests.engine_core.models.tiny_models import CASES, SIZES, make_model, save_model

FEW = ("cohere2-windows", "phi-padded")
"""Those that `make test` runs: windows and scaled logits; odd sizes, a head with a bias."""
EACH = [pytest.param(name, marks=() if name in FEW else pytest.mark.models) for name in FALLBACK]
_NOT_THROUGH_TRANSFORMERS = ("internlm3", "iquestcoder", "opt", "phi3-long", "phi3-short")
OWN = [
    pytest.param(name, marks=() if name == "glm" else pytest.mark.models)
    for name in [*CASES, *dense.SHAPES]
    if not name.startswith(_NOT_THROUGH_TRANSFORMERS)
]
"""Of dense families that Ringline has. GLM has its gate and the other projection side by side."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = {f"{length}": [(7 * length + 31 * place) % 196 + 3 for place in range(length)] for length in (1, 19, 70)}
IDS = torch.tensor(PROMPTS["70"])


@pytest.mark.parametrize("name", EACH)
def test_greedy_tokens_in_chunks_with_prefix_hits(name: str, tmp_path: Path) -> None:
    """And its rows have the same bits in every step, so that requests may move."""
    model = make_model(FALLBACK[name], seed=2)
    with started(save_model(model, tmp_path), max_num_batched_tokens=24, max_num_seqs=3) as engine:
        for cached in (0, 64):
            outcomes = run(engine, PROMPTS, dict.fromkeys(PROMPTS, GREEDY))
            assert outcomes["70", 0].cached_tokens == cached
            for prompt, ids in PROMPTS.items():
                assert_greedy(model, ids, outcomes[prompt, 0].token_ids)
        assert not engine.executor.numerics.startswith("unstable")


@pytest.mark.parametrize("name", OWN)
def test_families_of_our_own_run_through_transformers_too(name: str, tmp_path: Path) -> None:
    model = make_model(configuration(name), seed=2)
    with started(save_model(model, tmp_path), max_num_batched_tokens=24, model_impl="transformers") as engine:
        outcomes = run(engine, PROMPTS, dict.fromkeys(PROMPTS, GREEDY))
    for prompt, ids in PROMPTS.items():
        assert_greedy(model, ids, outcomes[prompt, 0].token_ids)


def test_families_are_those_that_are_named() -> None:
    """In the docs and in refusals, and that Ringline has no model of its own for."""
    kinds = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] for config in FALLBACK.values()}
    assert kinds == set(TESTED)
    assert not kinds & set(ARCHITECTURES)
    documented = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "models.md").read_text()
    assert all(f"`{name}`" in documented for name in TESTED)


def test_int8_is_that_of_a_model_of_our_own(tmp_path: Path) -> None:
    """Channels are rounded one by one, so it does not matter which layers are one layer here."""
    save_model(make_model(CASES["llama-mha-tied-biases"]), tmp_path)
    options = {"dtype": "float32", "quantization": "int8"}
    own, model = (build_model(open_at(tmp_path, model_impl=impl, **options)) for impl in ("ringline", "transformers"))
    expected = logits_of(own, IDS)
    assert (logits_of(model, IDS) - expected).std() < 1e-3 * expected.std()
    assert model.weight_bytes == pytest.approx(model.expected_weight_bytes, rel=0.1)


def test_which_model_runs_is_told_and_is_in_the_numerics(tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa"])
    save_model(model, tmp_path)
    details, digests, numerics = [], set(), set()
    for impl in ("auto", "transformers"):
        stages = StageDetails()
        with LLM(tmp_path, progress=StartupProgress(stages), model_impl=impl, kv_cache_memory_bytes=4 << 20) as llm:
            [result] = llm.generate(PROMPTS["19"], GREEDY, use_tqdm=False)
            digests.add(llm.model_digest)
            numerics.add(llm.numerics)
        assert_greedy(model, PROMPTS["19"], result.choices[0].token_ids)
        details.append(stages.details["configuration"])
    assert details[0].startswith("LlamaForCausalLM by Ringline's own model, float32")
    assert details[1].startswith("LlamaForCausalLM through transformers' module, as --model-impl says, float32")
    assert (len(digests), len(numerics)) == (1, 2)
    reason = open_at(save_model(make_model(FALLBACK["olmo"]), tmp_path / "olmo")).choice.reason
    assert reason == "through transformers' module, since Ringline has no model of its own for it"


def test_a_cache_is_sized_by_running_a_layer_of_each_kind(tmp_path: Path) -> None:
    save_model(make_model(FALLBACK["cohere2-windows"]), tmp_path)
    with started(tmp_path, kv_cache_memory_bytes=None, max_model_len=128, max_num_seqs=4) as engine:
        groups = engine.executor.kv_cache_config.groups
    assert [(len(group.layers), group.sliding_window) for group in groups] == [*[(1, 37)] * 3, (1, None)]


def test_a_model_with_some_of_its_layers(tmp_path: Path) -> None:
    """Layers 0 and 3 of four: with a window, and without one and without rotation."""
    reference = make_model(copy.deepcopy(FALLBACK["cohere2-windows"]))
    model = load(save_model(reference, tmp_path))
    assert model.layers_by_kind() == [[0, 1, 2], [3]]
    reference.model.layers = nn.ModuleList([reference.model.layers[0], reference.model.layers[3]])
    reference.config.layer_types = reference.config.layer_types[2:]
    with torch.no_grad():
        expected = reference(IDS[None], use_cache=False).logits[0]
    torch.testing.assert_close(logits_of(model.one_layer_of_each_kind(), IDS), expected, atol=2e-4, rtol=1e-4)


def test_tensors_that_nobody_needs_may_be_of_any_type(tmp_path: Path) -> None:
    """Published checkpoints of GPT-NeoX have their causal masks in them; the type is then read from the weights."""
    directory = save_model(make_model(FALLBACK["gpt_neox-partial-rotary"]), tmp_path)
    expected = logits_of(load(directory), IDS)
    attention, tensors = "gpt_neox.layers.0.attention", load_file(directory / "model.safetensors")
    masks = {
        f"{attention}.bias": torch.ones(1, 1, 512, 512, dtype=torch.bool).tril(),
        f"{attention}.masked_bias": torch.tensor(-1000000000),
        f"{attention}.rotary_emb.inv_freq": torch.ones(4, dtype=torch.complex64),
    }
    save_file(tensors | masks, directory / "model.safetensors")
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({name: raw[name] for name in raw if name != "dtype"}))
    assert torch.equal(logits_of(load(directory, dtype="auto"), IDS), expected)


def open_config(directory: Path, config: PretrainedConfig, architecture: str, **options: object) -> Any:
    raw = config.to_dict() | {"architectures": [architecture]}
    (directory / "config.json").write_text(json.dumps(raw))
    return open_at(directory, load_format="dummy", **options)


ROPE = {"rope_type": "longrope", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}
ROPE |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
REFUSED = {
    "BambaForCausalLM": r"is a hybrid of attention and state-space layers \(mamba_",
    "RobertaForCausalLM": r"is an encoder \(is_decoder=False\)",
    "Phi4MultimodalForCausalLM": r"is a multimodal model \(vision_config, audio_config\)",
    "GPT2LMHeadModel": "is not named …ForCausalLM",
    "GPTJForCausalLM": "it does not attend through transformers' AttentionInterface",
    "DiffLlamaForCausalLM": "attention is called 32 times: expected one call by each layer",
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_other_kinds_are_refused_by_name(architecture: str, tmp_path: Path) -> None:
    [kind, *_] = [kind for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == architecture]
    with pytest.raises(UnsupportedModelError, match=rf"{architecture}'? .*{REFUSED[architecture]}"):
        open_config(tmp_path, CONFIG_MAPPING[kind](), architecture)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("olmo", {"rope_parameters": ROPE}, "rope type 'longrope' is not supported through transformers, where"),
        (
            "cohere2-windows",
            {"num_attention_heads": 1, "head_dim": 16},
            "has 1 query heads: expected a multiple of its",
        ),
        ("cohere2-windows", {"intermediate_size": 0}, r"has shape \(.*\b0\b.*\): expected sizes of at least 1"),
        ("helium", {"head_dim": 24}, r"layers\.0\.self_attn\.o_proj takes 64 numbers and is given 96: the sizes"),
        ("granite_swa", {"attention_multiplier": 0.0}, r"self_attn scales scores by 0\.0; expected a number above 0"),
        ("granite_swa", {"attention_multiplier": -0.25}, r"self_attn scales scores by -0\.25; expected a number above"),
        ("granite_swa", {"attention_multiplier": math.inf}, r"self_attn scales scores by inf; expected a number above"),
        ("granite_swa", {"rms_norm_eps": -1.0}, r"input_layernorm has an epsilon of -1\.0: expected"),
    ],
)
def test_what_would_not_compute_is_refused(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = FALLBACK[name]
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    start = "" if name == "olmo" else f"^{architecture} does not run .*"
    with pytest.raises(UnsupportedModelError, match=start + message):
        open_config(tmp_path, replace_of(config, **change), architecture)


def test_what_transformers_raises_when_it_builds_is_a_refusal(tmp_path: Path) -> None:
    save_model(make_model(FALLBACK["cohere2-windows"]), tmp_path)  # which sets the architecture
    replace_of(FALLBACK["cohere2-windows"], initializer_range=-1.0).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"^Cohere2ForCausalLM does not run .* std"):
        load(tmp_path)


def replace_of(config: PretrainedConfig, **changes: Any) -> PretrainedConfig:
    return type(config)(**(config.to_dict() | changes))


@pytest.mark.parametrize(
    ("architecture", "impl", "message"),
    [
        ("FooForCausalLM", "auto", r"^architecture 'FooForCausalLM' is not supported: transformers .* not know it"),
        ("FooForCausalLM", "transformers", r"^architecture 'FooForCausalLM' is not supported: transformers"),
        ("FNetForMaskedLM", "auto", r"^architecture 'FNetForMaskedLM' is not supported: it is an encoder"),
        ("BertModel", "transformers", "--model-impl transformers does not run it; auto does"),
        ("ElectraModel", "ringline", "Ringline has no model of its own for it; --model-impl auto runs"),
        ("OlmoForCausalLM", "ringline", "Ringline has no model of its own for it; --model-impl auto runs"),
    ],
)
def test_architectures_that_nobody_runs(architecture: str, impl: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        open_config(tmp_path, FALLBACK["olmo"], architecture, model_impl=impl)


def test_an_architecture_of_another_family_is_a_contradiction(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="contradicts itself: PhiForCausalLM has model_type 'phi', not 'olmo'"):
        open_config(tmp_path, FALLBACK["olmo"], "PhiForCausalLM")
    (tmp_path / "config.json").write_text('{"architectures": ["OlmoForCausalLM"], "model_type": "banana"}')
    with pytest.raises(CheckpointError, match="itself: OlmoForCausalLM has model_type 'olmo', not 'banana'"):
        open_at(tmp_path, load_format="dummy")


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    directory = save_model(make_model(FALLBACK["olmo"]), tmp_path)
    (directory / "evil.py").write_text("raise SystemExit('ran')")
    raw = json.loads((directory / "config.json").read_text())
    raw["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (directory / "config.json").write_text(json.dumps(raw))
    assert logits_of(load(directory), IDS).isfinite().all()


@pytest.mark.parametrize("mix", ["shift", "norm"])
def test_rows_that_depend_on_each_other_are_refused(mix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shift of tokens, or a norm over all of them, as a new family might have."""
    from transformers.models.olmo.modeling_olmo import OlmoMLP

    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "shift": lambda x: x + x.roll(1, dims=1),
        "norm": lambda x: x / x.norm(dim=1, keepdim=True),
    }
    save_model(make_model(FALLBACK["olmo"]), tmp_path)
    forward = OlmoMLP.forward
    monkeypatch.setattr(OlmoMLP, "forward", lambda self, x: forward(self, changes[mix](x)))
    with pytest.raises(UnsupportedModelError, match="rows depend on each other"):
        load(tmp_path)


@pytest.mark.parametrize("window", [1, 2, 37, 511, 512])
def test_windows_are_read_from_masks(window: int) -> None:
    read = _window_of(masking_utils.sliding_window_causal_mask_function(window), 511)
    assert read == (window if window <= 511 else None)
    assert _window_of(masking_utils.causal_mask_function, 511) is None


@pytest.mark.parametrize(
    "mask",
    [
        masking_utils.bidirectional_mask_function,
        masking_utils.chunked_causal_mask_function(64, torch.zeros(1, dtype=torch.int64)),
        lambda batch, head, query, key: (key <= query) & ((key > query - 9) | (key < 4)),
    ],
)
def test_other_masks_are_refused(mask: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(UnsupportedModelError, match="neither causal nor a sliding window"):
        _window_of(mask, 511)


@pytest.mark.models
@pytest.mark.parametrize("kind", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
def test_every_causal_language_model_runs_or_is_refused(kind: str, tmp_path: Path) -> None:
    """Of all that transformers has: readably, and never by a traceback of something else."""
    config = tiny_config(kind)
    if config is None:
        pytest.skip("transformers makes none without arguments")
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    try:
        checkpoint = open_config(tmp_path, config, architecture, model_impl="transformers", dtype="float32")
    except CheckpointError as refused:
        message = str(refused)
        of_text = architecture.replace("ForConditionalGeneration", "ForCausalLM")
        named = (architecture, {"internlm3": "InternLM3", "iquestcoder": "IQuestCoder"}.get(kind, "") + "ForCausalLM")
        starts = (*(f"architecture {each!r} is not supported: " for each in named), f"{architecture} ", f"{of_text} ")
        assert message.startswith(starts) or "config.json is not usable: " in message, message
        assert len(message) < 500
        return
    model = build_model(checkpoint)
    assert isinstance(model, TransformersForCausalLM)
    assert logits_of(model, IDS[:20]).shape == (20, model.vocab_size)


def tiny_config(kind: str) -> PretrainedConfig | None:
    """A small configuration of any family; as large as its default where it takes no other."""
    make = CONFIG_MAPPING[kind]
    try:
        known = make().to_dict()
    except Exception:
        return None
    small = {**SIZES, "head_dim": 16, "sliding_window": 37}
    sizes: dict[str, Any] = {name: size for name, size in small.items() if name in known}
    if isinstance(text := known.get("text_config"), dict):
        sizes["text_config"] = {name: size for name, size in small.items() if name in text}
    try:
        return make(**sizes)
    except Exception:
        return make()
