"""The benchmarks of drafts count what they say, on models that are what they are called."""

from __future__ import annotations

from pathlib import Path
from random import Random

import gguf
import pytest
import torch
from transformers import Qwen3Config

from benchmarks import acceptance, chains, twins
from benchmarks.acceptance import Answer, Rounds
from benchmarks.chains import ChainTask, successors
from benchmarks.targets import verdicts
from engine_core.llm import LLM
from engine_core.request import SamplingParams

VOCABULARY = 4 * chains.PERIOD + 5
BUNDLED = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny"


def test_a_model_continues_chains_and_one_that_drafts_for_it_a_share(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
    )
    after, shares = successors(VOCABULARY), {}
    for share in (1.0, 0.8):
        chains.write_chain(config, tmp_path / str(share), share)
        with LLM(
            tmp_path / str(share), max_num_seqs=128, kv_cache_memory_bytes="16MiB", max_model_len=64, num_threads=1
        ) as llm:
            asked = [[token] for token in range(0, VOCABULARY, 7)]
            results = llm.generate(asked, SamplingParams(temperature=1.0, max_tokens=1, ignore_eos=True))
        right = [result.outputs[0].token_ids[0] == after[token] for [token], result in zip(asked, results, strict=True)]
        shares[share] = sum(right) / len(right)
    assert shares[1.0] > 0.99
    assert shares[0.8] == pytest.approx(0.8, abs=0.05)


def test_texts_of_chains_repeat_what_their_names_say() -> None:
    after = successors(VOCABULARY)
    found = {}
    for name in ("copies", "edits", "summaries", "stories"):
        prompt = ChainTask(name, length=160)._prompt(after, Random(name))
        answer = [after[prompt[-1]]]
        while len(answer) < 100:
            answer.append(after[answer[-1]])
        assert len(set(answer)) == len(answer), "nothing repeats within an answer"
        found[name] = acceptance.looked_up(Answer(prompt, answer, SamplingParams()), 8)
    assert found["copies"].share == 1.0
    assert found["copies"].tokens_per_step > 8
    assert 2 < found["edits"].tokens_per_step < 6
    assert 2 < found["summaries"].tokens_per_step < 6
    assert found["stories"].accepted == 0


def test_steps_end_at_the_first_draft_that_was_not_drawn() -> None:
    right, wrong = True, False
    assert acceptance.rounds_of([right] * 10, 4) == Rounds(steps=2, drafts=8, accepted=8)
    assert acceptance.rounds_of([wrong] * 3, 4) == Rounds(steps=3, drafts=3, accepted=0)
    assert acceptance.rounds_of([right, wrong, right, right], 2) == Rounds(steps=2, drafts=3, accepted=2)


def test_a_twin_has_the_layers_that_were_kept(tmp_path: Path) -> None:
    ids = torch.tensor([[1, 2, 3, 4]])
    twins.prune(BUNDLED, [0, 4], tmp_path / "twin")
    wanted = twins.load(BUNDLED)
    twins._keep_layers(wanted, [0, 4])
    assert torch.equal(twins.load(tmp_path / "twin")(ids).logits, wanted(ids, use_cache=False).logits)


def test_a_twin_of_a_gguf_file_has_its_bytes(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    for layer in range(3):
        data = torch.full((2, 18), layer, dtype=torch.uint8).numpy()
        writer.add_tensor(f"blk.{layer}.attn_q.weight", data, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    twins.prune(tmp_path / "model.gguf", [0, 2], tmp_path / "twin.gguf")
    twin = gguf.GGUFReader(tmp_path / "twin.gguf")
    assert twin.fields["llama.block_count"].contents() == 2
    assert twin.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert {each.name: each.data[0, 0] for each in twin.tensors} == {"blk.0.attn_q.weight": 0, "blk.1.attn_q.weight": 2}


def test_targets_judge_the_worst_of_the_large_batches() -> None:
    def row(text: str, batch: int, ratio: float) -> dict[str, object]:
        taken = {"ratio": ratio, "low": ratio, "high": ratio}
        return {"model": "SmolLM2-135M", "text": text, "batch": batch, "engine": "Ringline n-grams", **taken}

    figures = [row("copies", 1, 2.5), row("copies", 16, 1.2), row("stories", 64, 0.9)]
    found = {
        each["what"]: (each["is"], each["verdict"]) for each in verdicts({"drafts": {"figures": {"figures": figures}}})
    }
    assert found["SmolLM2-135M, copies, batch 1: n-grams / none"] == (2.5, "reached")
    assert found["SmolLM2-135M, edits, batch 1: n-grams / none"] == (None, "not measured")
    assert found["SmolLM2-135M, batch 16 and 64: the worst with drafts / none"] == (0.9, "short")
