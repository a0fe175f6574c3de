"""What the trained model can do: the share of right greedy answers in chats, and a few samples to read."""

from collections.abc import Sequence
from random import Random

import torch
from corpus import arithmetic, facts
from corpus.exchange import Exchange
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

SAMPLE_CHATS = (
    "What is Ringline?",
    "Who are you?",
    "What is 7 + 5?",
    "Tom has 12 apples and buys 7 more. How many apples does Tom have now?",
    "What is the capital of France?",
    "Tell me a story about a fox.",
)
SAMPLE_TEXTS = ("Once upon a time, there was a little", "12 + 7 =")
BATCH = 64


def accuracies(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> dict[str, float]:
    """The share of right answers, by kind of question; an answer is right when it is the corpus's, to the letter."""
    rng = Random(f"{seed}:evaluation")
    sums = arithmetic.every_sum()
    seen = [s for s in sums if not s.held_out]
    held_out = [s for s in sums if s.held_out]
    small = [s for s in seen if max(s.a, s.b, s.value) <= 20]
    asked = {
        "arithmetic": [arithmetic.phrase(rng, s) for s in rng.sample(seen, 300)],
        "arithmetic_up_to_20": [arithmetic.phrase(rng, s) for s in rng.sample(small, 200)],
        "arithmetic_held_out": [arithmetic.phrase(rng, s) for s in held_out],
        "word_problems": [arithmetic.word_problem(rng) for _ in range(200)],
        "facts": [facts.ask(rng, relation, x) for relation, x in facts.FACTS],
    }
    return {kind: round(_right(model, tokenizer, exchanges), 4) for kind, exchanges in asked.items()}


def samples(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[tuple[str, str]]:
    """(prompt, greedy answer) for a few chats and texts."""
    chats = answer(model, tokenizer, SAMPLE_CHATS, max_new_tokens=300)
    texts = _continue(model, tokenizer, list(SAMPLE_TEXTS), max_new_tokens=300)
    return list(zip((*SAMPLE_CHATS, *SAMPLE_TEXTS), (*chats, *texts), strict=True))


def answer(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], max_new_tokens: int = 40
) -> list[str]:
    """The greedy answers to questions asked as chats of one turn."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    return _continue(model, tokenizer, [str(prompt) for prompt in prompts], max_new_tokens)


def _right(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, exchanges: list[Exchange]) -> float:
    answers = answer(model, tokenizer, [e.question for e in exchanges])
    return sum(a == e.answer for a, e in zip(answers, exchanges, strict=True)) / len(exchanges)


def _continue(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], max_new_tokens: int
) -> list[str]:
    """Greedy continuations, padded on the left so that every prompt ends where its answer begins."""
    continued = []
    for start in range(0, len(prompts), BATCH):
        inputs = tokenizer(prompts[start : start + BATCH], padding=True, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(  # type: ignore[misc]
                **inputs, do_sample=False, max_new_tokens=max_new_tokens
            )
        continued += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return continued
