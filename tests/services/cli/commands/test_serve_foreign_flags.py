"""Every flag of `vllm serve` and of llama-server is an option of `ringline serve`, sets one, changes nothing, or is
answered.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from services.cli.commands.engine import FOREIGN_FLAGS, engine
from services.cli.commands.gateway import gateway
from services.cli.commands.processor import processor
from services.cli.commands.serve import serve
from services.common.config.foreign_flags import OBJECTS, Alias, NoEffect, entry_of

COMMANDS = (serve, engine, processor, gateway)
OWN = {flag for command in COMMANDS for param in command.params for flag in (*param.opts, *param.secondary_opts)}
OWN |= {"-h", "--help"}
NAMES = {param.name for command in COMMANDS for param in command.params}
OF_OTHERS = {"--version", "--nnodes", "--node-rank", "--predict"}
"""Flags in answers that no service has."""


def kind_of(flag: str) -> str:
    """What becomes of a flag; empty for one that nobody knows."""
    entry = entry_of(flag, FOREIGN_FLAGS)
    if flag in OWN:
        return "option"
    return {Alias: "alias", NoEffect: "no effect", str: "answer", type(None): ""}[type(entry)]


def flags_in(name: str) -> list[list[str]]:
    """The spellings of each flag in a list."""
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", ["flags_of_vllm_serve.txt", "flags_of_llama_server.txt"])
def test_each_flag_of_another_server_is_taken_or_answered(name: str) -> None:
    spellings = flags_in(name)
    assert [flag for flags in spellings for flag in flags if not kind_of(flag)] == []
    for flags in spellings:
        if "--help" in flags or "--seed" in flags:  # ours are of more than help, and of weights
            continue
        kinds = {kind_of(flag) for flag in flags if "no" not in re.split("-+", flag)[:2]}
        assert len(kinds) <= 1 or kinds == {"option", "alias"}, flags


def test_an_alias_is_that_of_an_option() -> None:
    aliases = [entry for entry in FOREIGN_FLAGS.values() if isinstance(entry, Alias)]
    assert {name for each in aliases for name in (each.option, each.others) if name is not None} <= NAMES
    params = [param for command in reversed(COMMANDS) for param in command.params]
    options = {param.name: param for param in params if isinstance(param, click.Option)}
    for each in aliases:
        for value in {each.value, *each.values.values()} - {None}:
            options[each.option].type.convert(value, None, None)  # raises if it is not usable


def test_objects_are_the_options_whose_help_says_so() -> None:
    params = [param for command in COMMANDS for param in command.params if isinstance(param, click.Option)]
    assert {param.name for param in params if "JSON object" in (param.help or "")} == OBJECTS


def test_an_answer_names_flags_that_are_there() -> None:
    texts = [entry for entry in FOREIGN_FLAGS.values() if isinstance(entry, str)]
    texts += [
        text for entry in FOREIGN_FLAGS.values() if isinstance(entry, NoEffect) for text in (entry.why, entry.otherwise)
    ]
    named = {flag for text in texts for flag in re.findall(r"(?<!\w)--[a-z][a-z-]+", text)}
    assert named <= OWN | OF_OTHERS


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (
            "m -tp 2 -pp 2 --served-model-name a b c --dtype half --generation-config vllm --trust-remote-code",
            {
                "tensor_parallel_size": 2,
                "pipeline_parallel_size": 2,
                "served_model_name": "a",
                "model_aliases": ("b", "c"),
                "dtype": "float16",
                "generation_config": "none",
            },
        ),
        (
            "m --swap-space 4 --disable-log-requests --enable-auto-tool-choice --tool-call-parser hermes -O3 "
            "--stream-interval 4 --scheduling-policy fcfs --api-key k --ssl-keyfile f -q int8 -ep",
            {
                "policy": "fcfs",
                "tool_call_parser": "hermes",
                "api_key": ("k",),
                "tls_key_file": "f",
                "quantization": "int8",
                "enable_expert_parallel": True,
            },
        ),
        (
            "-m m.gguf -c 4096 -t 4 -ngl 99 -a x,y -np 2 -b 512 -ub 64 -fa on --jinja --mlock --no-mmap -ctk q8_0",
            {
                "model": "m.gguf",
                "max_model_len": 4096,
                "num_threads": 4,
                "served_model_name": "x",
                "model_aliases": ("y",),
                "max_num_seqs": 2,
                "max_num_batched_tokens": 512,
                "kv_cache_dtype": "int8",
            },
        ),
        ("-hf org/m:Q4_K_M -c 0 -np -1 -fa", {"model": "org/m:Q4_K_M"}),
        ("-m m.gguf -c4096 -ngl99 -fa=on -np2", {"model": "m.gguf", "max_model_len": 4096, "max_num_seqs": 2}),
        (
            "-hf org/m --ctx-size 4096 --threads 4 --n-gpu-layers -1 --flash-attn auto --alias x --host ::1",
            {
                "model": "org/m",
                "max_model_len": 4096,
                "num_threads": 4,
                "served_model_name": "x",
                "host": "::1",
            },
        ),
        (
            "m --tokenizer_mode mistral --config_format mistral --load_format mistral --tool-call-parser mistral "
            "--max_model_len 4096 --served_model_name=x --limit-mm-per-prompt {}",
            {
                "load_format": "auto",
                "tool_call_parser": "mistral",
                "max_model_len": 4096,
                "served_model_name": "x",
                "limit_mm_per_prompt": "{}",
            },
        ),
        (
            "m --tool-call-parser=deepseek_v31 --reasoning-parser deepseek_r1",
            {"tool_call_parser": "deepseek", "reasoning_parser": "think"},
        ),
        ("m --tool-call-parser jamba", {"tool_call_parser": "auto"}),
        (
            "m --logits_processors vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor "
            "--no-enable-prefix-caching --mm-processor-cache-gb 0 --mm-encoder-tp-mode data",
            {"enable_prefix_caching": False},
        ),
        (
            "m --allowed-media-domains a.example b.example --limit-mm-per-prompt.video 0 --limit_mm_per_prompt.image=2",
            {"allowed_media_hosts": ("a.example", "b.example"), "limit_mm_per_prompt": '{"video": 0, "image": 2}'},
        ),
        (
            "m --mm-processor-kwargs.size.longest_edge 5 --mm-processor-kwargs.size.mode crop",
            {"mm_processor_kwargs": '{"size": {"longest_edge": 5, "mode": "crop"}}'},
        ),
        (
            "m --enable-lora --lora-modules a=/x b=/y --max_loras 4",
            {"enable_lora": True, "lora_modules": "a=/x,b=/y", "max_loras": 4},
        ),
        ("m --enable-lora --fully-sharded-loras --lora-dtype auto --specialize-active-lora", {"enable_lora": True}),
        ("m -sc {}", {"speculative_config": "{}"}),
        ("m --speculative_config={}", {"speculative_config": "{}"}),
        (
            "m -sc.method ngram --speculative-config.num_speculative_tokens 5 -sc.prompt_lookup_max=4",
            {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'},
        ),
    ],
)
def test_a_command_line_of_another_server_sets_our_options(line: str, options: dict[str, object]) -> None:
    context = serve.make_context("serve", line.split())
    given = {name: value for name, value in context.params.items() if value is not None}
    assert given.pop("checkpoint", "m") == "m"
    assert given == options


@pytest.mark.parametrize(
    ("flags", "what_counts"),
    [
        ("--rope-scaling yarn", "GGUF file"),
        ("--rope-scale 4", "GGUF file"),
        ("--yarn-orig-ctx 32768", "GGUF file"),
        ("--rope-theta 1e6", "GGUF file"),
        ("--hf-overrides {}", "GGUF file"),
        ("--reasoning-budget 0", "enable_thinking"),
        ("--tokenizer-mode slow", "leave it out"),
        ("--config-format hf_raw", "leave it out"),
        ("--logits-processors some.module:Processor", "no_repeat_ngram"),
        ("--limit-mm-per-prompt.image 2 --limit-mm-per-prompt {}", "choose one"),
        ("--mm-processor-kwargs.size 2 --mm-processor-kwargs.size.longest_edge 5", "has a value already"),
        ("--mm-processor-kwargs.max_pixels", "requires an argument"),
        ("-sc.method ngram -sc {}", "choose one"),
        ("--speculative-model x", "--speculative-config"),
        ("-md x", "draft_model"),
        ("--spec-type ngram-simple", '"method": "…"'),
        ("--draft-max 4", "num_speculative_tokens"),
        ("--spec-ngram-simple-size-n 4", "prompt_lookup_max"),
        ("--lookup-cache-dynamic x", "method ngram"),
        ("--draft-p-min 0.5", "how many pay is measured"),
        ("-ngld 9", "beside the model"),
        ("--lora-dtype float16", "which --dtype sets"),
    ],
)
def test_an_answer_says_what_counts_instead(flags: str, what_counts: str) -> None:
    with pytest.raises(click.UsageError, match=what_counts):
        serve.make_context("serve", ["m", *flags.split()])
