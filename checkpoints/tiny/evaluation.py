"""What the trained model can do: the share of right greedy answers in chats, and a few samples to read."""

import re
from collections.abc import Sequence
from random import Random

import torch
from corpus import arithmetic, facts
from corpus.exchange import Exchange
from corpus.names import held_out, made_up
from corpus.world import BOYS, CREATURES, GIRLS, a
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

SAMPLE_CHATS = (
    "What is Ringline?",
    "Who are you?",
    "What is 7 + 5?",
    "Tom has 12 apples and buys 7 more. How many apples does Tom have now?",
    "What is the capital of France?",
    "Tell me a story about a fox.",
    "Tell me a story about a fox named Bruno.",
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
    right = {kind: _right(model, tokenizer, exchanges) for kind, exchanges in asked.items()}
    for sort, names in (("known", rng.sample(GIRLS + BOYS, 60)), ("unseen", _unseen_names(rng, 60))):
        said, recalled = _remembered(model, tokenizer, names)
        right[f"{sort}_names_said_back"], right[f"{sort}_names_recalled"] = said, recalled
        right[f"{sort}_names_kept_in_stories"] = _kept_in_stories(model, tokenizer, rng, names)
    return {kind: round(share, 4) for kind, share in right.items()}


def samples(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[tuple[str, str]]:
    """(prompt, greedy answer) for a few chats and texts."""
    chats = answer(model, tokenizer, SAMPLE_CHATS, max_new_tokens=300)
    texts = _continue(model, tokenizer, list(SAMPLE_TEXTS), max_new_tokens=300)
    return list(zip((*SAMPLE_CHATS, *SAMPLE_TEXTS), (*chats, *texts), strict=True))


def answer(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], max_new_tokens: int = 40
) -> list[str]:
    """The greedy answers to questions asked as chats of one turn."""
    return _reply(model, tokenizer, [[{"role": "user", "content": q}] for q in questions], max_new_tokens)


def _reply(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    chats: Sequence[list[dict[str, str]]],
    max_new_tokens: int = 40,
) -> list[str]:
    """The greedy next turns of chats."""
    prompts = tokenizer.apply_chat_template(list(chats), tokenize=False, add_generation_prompt=True)
    return _continue(model, tokenizer, [str(prompt) for prompt in prompts], max_new_tokens)


def _right(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, exchanges: list[Exchange]) -> float:
    answers = answer(model, tokenizer, [e.question for e in exchanges])
    return sum(a == e.answer for a, e in zip(answers, exchanges, strict=True)) / len(exchanges)


def _remembered(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, names: Sequence[str]
) -> tuple[float, float]:
    """The shares of names that are said back at once, and again when asked for after another question."""
    said, between = "Nice to meet you, {}!", ("What is the capital of France?", "The capital of France is Paris.")
    told = [[{"role": "user", "content": f"My name is {name}."}] for name in names]
    greeted = _reply(model, tokenizer, told)
    later = [
        [
            *chat,
            {"role": "assistant", "content": said.format(name)},
            {"role": "user", "content": between[0]},
            {"role": "assistant", "content": between[1]},
            {"role": "user", "content": "What is my name?"},
        ]
        for chat, name in zip(told, names, strict=True)
    ]
    recalled = _reply(model, tokenizer, later)
    return (
        sum(a == said.format(name) for a, name in zip(greeted, names, strict=True)) / len(names),
        sum(a == f"Your name is {name}." for a, name in zip(recalled, names, strict=True)) / len(names),
    )


def _kept_in_stories(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, rng: Random, names: Sequence[str]
) -> float:
    """The share of stories about the name that was asked for, with at most one more name, a friend's."""
    kinds = [rng.choice(CREATURES) for _ in names]
    questions = [f"Tell me a story about {a(kind)} named {name}." for kind, name in zip(kinds, names, strict=True)]
    told = answer(model, tokenizer, questions, max_new_tokens=300)
    kept = [
        name in tale.split(".")[0] and kind in tale.split(".")[0] and len(_names_in(tale) | {name}) <= 2
        for tale, kind, name in zip(told, kinds, names, strict=True)
    ]
    return sum(kept) / len(kept)


def _names_in(tale: str) -> set[str]:
    """The words with a capital letter that no sentence begins with: in the corpus's stories these are names."""
    return {name for name in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", tale) if name != "I"}


def _unseen_names(rng: Random, count: int) -> list[str]:
    """Made-up names that training leaves out."""
    names: list[str] = []
    while len(names) < count:
        name = made_up(rng, female=rng.random() < 0.5)
        if held_out(name):
            names.append(name)
    return names


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
