"""Time to the first token of a prompt with a picture, beside transformers on the same cores.

    python -m benchmarks.pictures qwen3-vl-2b deepseek-ocr

Models have their published sizes and random weights, in ``--dtype``. The pixels are those that a processor has made (
its own time is left out). Each round computes the same prompt with both, in turns, and once more with Ringline, which
then finds the picture encoded. ``--apart`` does all of Ringline's rounds first, so that one model at a time is in
memory: DeepSeek-OCR in float32 takes 14 GB.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Row, emit, output_options, print_table
from engine_core.llm import configure
from engine_core.media import MediaItem, Picture, PictureShape, View
from engine_core.progress import StartupProgress
from engine_core.request import Request, SamplingParams
from engine_core.startup import StartedEngine, start_engine

_FIRST = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
_TEXT = 40
"""Tokens of text around a picture."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A model, a picture, and how transformers computes both."""

    name: str
    config: Mapping[str, Any]
    """config.json as published."""
    preprocessor: Mapping[str, Any]
    """preprocessor_config.json, as far as it is read."""
    picture: Picture
    placeholder: int
    """Id of the token that a picture takes the place of."""
    transformers: Callable[[list[int], Picture, torch.dtype], Callable[[], None]]
    """Makes the model; what it returns computes the prompt with these ids."""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contests", metavar="CONTEST", nargs="+", choices=sorted(CONTESTS))
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of both (%(default)s)")
    parser.add_argument("--apart", action="store_true", help="one model after the other")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    output_options(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [
        _run(CONTESTS[name](), arguments.rounds, arguments.dtype, apart=arguments.apart) for name in arguments.contests
    ]
    print_table(rows, "time to the first token of a picture")
    emit(arguments, "pictures", rows)


def _run(contest: Contest, rounds: int, dtype: str, *, apart: bool) -> Row:
    shape = contest.picture.shape
    draw = random.Random(1)
    head, tail = ([draw.randrange(1000, 50_000) for _ in range(_TEXT // 2)] for _ in range(2))
    prompt = [*head, *[contest.placeholder] * shape.num_tokens, *tail]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(contest.config))
        Path(directory, "preprocessor_config.json").write_text(json.dumps(contest.preprocessor))
        engine = _engine(directory, len(prompt) + 64, dtype)
    first, again, other = list[float](), list[float](), list[float]()

    def compute(number: int) -> None:
        picture = _changed(contest.picture, number)
        first.append(_ours(engine, prompt, picture))
        again.append(_ours(engine, prompt, picture))

    numbers = range(rounds + 1)  # the first round warms up
    if apart:
        for number in numbers:
            compute(number)
        del engine
        gc.collect()
    theirs = contest.transformers(prompt, contest.picture, getattr(torch, dtype))
    for number in numbers:
        if number % 2 or apart:
            other.append(_timed(theirs))
        if not apart:
            compute(number)
            if not number % 2:
                other.append(_timed(theirs))
    del theirs
    gc.collect()
    ours, repeated, beside = (statistics.median(each[1:]) for each in (first, again, other))
    return {
        "picture": contest.name,
        "tokens": shape.num_tokens,
        "first token s": round(ours, 2),
        "transformers s": round(beside, 2),
        "transformers / Ringline": round(beside / ours, 2),
        "repeated s": round(repeated, 2),
        "encoding's share": round(1 - repeated / ours, 2),
    }


def _engine(directory: str, length: int, dtype: str) -> StartedEngine:
    config = configure(
        model=directory,
        load_format="dummy",
        dtype=dtype,
        skip_tokenizer_init=True,
        max_model_len=length,
        max_num_seqs=1,
        max_num_batched_tokens=length,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 30,
    )
    return start_engine(config, StartupProgress())


def _ours(engine: StartedEngine, prompt: list[int], picture: Picture) -> float:
    start = time.perf_counter()
    engine.core.add(Request("0", tuple(prompt), _FIRST, media=(MediaItem(picture, _TEXT // 2),)))
    while engine.core.has_work():
        engine.core.step()
    return time.perf_counter() - start


def _timed(compute: Callable[[], None]) -> float:
    start = time.perf_counter()
    compute()
    return time.perf_counter() - start


def _changed(picture: Picture, number: int) -> Picture:
    """The same with another first pixel, so that no engine has encoded it."""
    first = picture.views[0]
    pixels = bytes([number % 256]) + first.pixels[1:]
    return Picture.of(picture.shape, (View(first.height, first.width, pixels), *picture.views[1:]))


def _noise(height: int, width: int, seed: int) -> View:
    return View(height, width, random.Random(seed).randbytes(height * width * 3))


def _normalized(view: View, dtype: torch.dtype) -> torch.Tensor:
    """[3, height, width] from −1 to 1."""
    pixels = torch.frombuffer(bytearray(view.pixels), dtype=torch.uint8).view(view.height, view.width, 3)
    return (pixels.permute(2, 0, 1).float() / 127.5 - 1).to(dtype)


def _random(model: type, config: object, dtype: torch.dtype) -> Any:
    """A model of transformers with small random weights, made without drawing them one by one."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        made = model._from_config(config, dtype=dtype)  # type: ignore[attr-defined]
    for tensor in [*made.parameters(), *made.buffers()]:
        if tensor.is_floating_point() and tensor.dtype == dtype:
            tensor.data.uniform_(-0.02, 0.02)
    return made.eval()


def _qwen3_vl() -> Contest:
    """Qwen3-VL-2B and a picture of 1024 × 1024."""
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": 151655,
        "video_token_id": 151656,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "max_position_embeddings": 262144,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5_000_000,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "tie_word_embeddings": True,
            "vocab_size": 151936,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "deepstack_visual_indexes": [5, 11, 17],
            "depth": 24,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1024,
            "in_channels": 3,
            "intermediate_size": 4096,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 2048,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }
    picture = Picture.of(PictureShape(32 * 32, token_rows=32, token_columns=32), [_noise(1024, 1024, 1)])
    limits = {"size": {"longest_edge": 2**24, "shortest_edge": 2**16}}
    return Contest("Qwen3-VL-2B, 1024 × 1024", config, limits, picture, 151655, _qwen3_vl_of_transformers(config))


def _qwen3_vl_of_transformers(
    config: Mapping[str, Any],
) -> Callable[[list[int], Picture, torch.dtype], Callable[[], None]]:
    def make(prompt: list[int], picture: Picture, dtype: torch.dtype) -> Callable[[], None]:
        from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl

        model = _random(
            modeling_qwen3_vl.Qwen3VLForConditionalGeneration,
            configuration_qwen3_vl.Qwen3VLConfig(**json.loads(json.dumps(config))),
            dtype,
        )
        side = picture.views[0].height // 16
        patches = torch.empty(side * side, 3 * 2 * 16 * 16, dtype=dtype).uniform_(-1, 1)
        ids = torch.tensor([prompt])
        kinds = (ids == config["image_token_id"]).int()

        @torch.inference_mode()
        def compute() -> None:
            grid = torch.tensor([[1, side, side]])
            model(
                input_ids=ids,
                pixel_values=patches,
                image_grid_thw=grid,
                mm_token_type_ids=kinds,
                logits_to_keep=1,
                use_cache=False,
            )

        return compute

    return make


def _deepseek_ocr() -> Contest:
    """DeepSeek-OCR and a page in 6 crops of 640 × 640, beside the whole page of 1024 × 1024."""
    language = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "hidden_size": 1280,
        "intermediate_size": 6848,
        "kv_lora_rank": None,
        "lm_head": True,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 896,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_attention_heads": 10,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 12,
        "num_key_value_heads": 10,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "rm_head": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "torch_dtype": "bfloat16",
        "use_mla": False,
        "v_head_dim": 0,
        "vocab_size": 129280,
    }
    sam = {
        "downsample_channels": [512, 1024],
        "global_attn_indexes": [2, 5, 8, 11],
        "heads": 12,
        "layers": 12,
        "width": 768,
    }
    clip = {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14, "width": 1024}
    config = {
        **language,
        "architectures": ["DeepseekOCRForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "candidate_resolutions": [[1024, 1024]],
        "global_view_pos": "head",
        "language_config": language,
        "projector_config": {
            "input_dim": 2048,
            "model_type": "mlp_projector",
            "n_embed": 1280,
            "projector_type": "linear",
        },
        "tile_tag": "2D",
        "vision_config": {
            "image_size": 1024,
            "mlp_ratio": 3.7362,
            "model_name": "deeplip_b_l",
            "model_type": "vision",
            "width": {"clip-l-14-224": clip, "sam_vit_b": sam},
        },
    }
    views = [_noise(1024, 1024, 1), *(_noise(640, 640, 2 + crop) for crop in range(6))]
    tokens = 16 * 17 + 1 + 3 * 10 * (2 * 10 + 1)
    picture = Picture.of(PictureShape(tokens, rows=3, columns=2), views)
    return Contest("DeepSeek-OCR, a page in 6 crops", config, {}, picture, 128815, _unlimited_ocr)


def _unlimited_ocr(prompt: list[int], picture: Picture, dtype: torch.dtype) -> Callable[[], None]:
    """The class of transformers with DeepSeek-OCR's parts and, by its defaults, sizes; it attends in full here."""
    from transformers.models.unlimited_ocr import configuration_unlimited_ocr, modeling_unlimited_ocr

    text = {"layer_types": ["full_attention"] * 12, "sliding_window": 128}
    model = _random(
        modeling_unlimited_ocr.UnlimitedOcrForConditionalGeneration,
        configuration_unlimited_ocr.UnlimitedOcrConfig(text_config=text),
        dtype,
    )
    whole, *crops = (_normalized(view, dtype) for view in picture.views)
    ids = torch.tensor([prompt])

    @torch.inference_mode()
    def compute() -> None:
        model(
            input_ids=ids,
            pixel_values=whole[None],
            pixel_values_local=torch.stack(crops),
            num_local_patches=[len(crops)],
            patches_grid=[[picture.shape.columns, picture.shape.rows]],
            logits_to_keep=1,
            use_cache=False,
        )

    return compute


CONTESTS: dict[str, Callable[[], Contest]] = {"deepseek-ocr": _deepseek_ocr, "qwen3-vl-2b": _qwen3_vl}


if __name__ == "__main__":
    main()
