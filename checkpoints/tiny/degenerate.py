"""The share of degenerate answers: those that loop, or that have a word which the corpus never writes.

    .venv/bin/python checkpoints/tiny/degenerate.py --seeds 1000
    .venv/bin/python checkpoints/tiny/degenerate.py --seeds 1000 --temperature 1 --top-p 1

Asks what the README asks, with the sampling that `generation_config.json` recommends unless flags say otherwise.
"""

import argparse
import re
from dataclasses import replace
from pathlib import Path

from corpus import document
from transformers import PreTrainedTokenizerFast

from engine_core.llm import LLM

HERE = Path(__file__).parent
TEXTS = ("Once upon a time",)
CHATS = ("Tell me a story about a fox.", "What is 3 plus 4?")
DOCUMENTS = 40_000  # of the corpus, whose words are known

_WORD = re.compile(r"[A-Za-z']+")
_LOOP = re.compile(r"(.{1,12}?)\1{3,}", re.DOTALL)  # the same few characters four times in a row
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")


def main() -> None:
    """Ask, judge, and print the share."""
    asked = _arguments()
    words = corpus_words(asked.documents)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(HERE)
    chats = [[{"role": "user", "content": text}] for text in CHATS]
    prompts = [*TEXTS, *map(str, tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True))]
    chosen = {name: value for name in ("temperature", "top_p") if (value := getattr(asked, name)) is not None}
    with LLM(HERE) as llm:
        for name, prompt in zip((*TEXTS, *CHATS), prompts, strict=True):
            params = replace(llm.get_default_sampling_params(), max_tokens=asked.max_tokens, **chosen)
            ids = tokenizer.encode(prompt, add_special_tokens=False)
            results = llm.generate([ids] * asked.seeds, [replace(params, seed=seed) for seed in range(asked.seeds)])
            texts = [tokenizer.decode(r.choices[0].token_ids, skip_special_tokens=True) for r in results]
            bad = [text for text in texts if problem(text, words)]
            print(f"{name!r}: {len(bad)} of {len(texts)} degenerate, {len(set(texts))} different answers")
            for text in bad[:3]:
                print(f"  {problem(text, words)}: {text[:160]!r}")


def corpus_words(documents: int, seed: int = 7) -> frozenset[str]:
    """Every word of the first documents of the corpus."""
    drawn = (document(seed, index) for index in range(documents))
    texts = (text for d in drawn for text in (d.text or "", *(str(m.get("content") or "") for m in d.messages)))
    return frozenset(word for text in texts for word in _WORD.findall(text))


def problem(text: str, words: frozenset[str]) -> str | None:
    """What is degenerate about an answer. Names may be new: capital letters elsewhere are not."""
    if loop := _LOOP.search(text):
        return f"{loop[1]!r} again and again"
    if odd := _UNPRINTABLE.search(text):
        return f"the character {odd[0]!r}"
    found = [match for match in _WORD.finditer(text) if match.end() < len(text)]  # the last one may be cut
    unknown = (match[0] for match in found if match[0] not in words)
    return next((f"the word {word!r}" for word in unknown if not (word[0].isupper() and word[1:].islower())), None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count the bundled model's degenerate answers.")
    parser.add_argument("--seeds", type=int, default=1000, help="answers to each question")
    parser.add_argument("--max-tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--temperature", type=float, help="default: what generation_config.json recommends")
    parser.add_argument("--top-p", type=float, help="default: what generation_config.json recommends")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="of the corpus, whose words are known")
    return parser.parse_args()


if __name__ == "__main__":
    main()
