"""The bundled model: it loads as any checkpoint does, answers, and agrees with the record of its training."""

import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import jinja2
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
RECORD = json.loads((TINY / "training.json").read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def corpus():
    """The corpus package beside the checkpoint."""
    sys.path.insert(0, str(TINY))
    try:
        import corpus

        yield corpus
    finally:
        sys.path.remove(str(TINY))


def complete(model, tokenizer, prompt, max_new_tokens=160):
    """The greedy continuation, and whether the model itself ended it."""
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(output, skip_special_tokens=True), len(output) < max_new_tokens


def ask(model, tokenizer, question, **options):
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return complete(model, tokenizer, prompt, **options)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_is_a_small_qwen3_in_bfloat16(model):
    config = AutoConfig.from_pretrained(TINY)
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert config.dtype == torch.bfloat16
    assert config.head_dim != config.hidden_size // config.num_attention_heads
    assert config.tie_word_embeddings
    assert sum(p.numel() for p in model.parameters()) == RECORD["parameters"]
    assert sum(path.stat().st_size for path in TINY.iterdir() if path.is_file()) <= 8_000_000


def test_record_agrees_with_the_files(corpus, tokenizer):
    assert sha256((TINY / "model.safetensors").read_bytes()) == RECORD["weights_sha256"]
    assert sha256((TINY / "tokenizer.json").read_bytes()) == RECORD["tokenizer_sha256"]
    from tokenization import render

    head = "".join(render(tokenizer, corpus.document(RECORD["seed"], i)) for i in range(500))
    assert sha256(head.encode()) == RECORD["corpus_sha256"]


def test_record_keeps_the_promise_of_half_an_hour():
    assert RECORD["cpu_seconds"] <= 30 * 60  # of one thread, so the wall clock of a core that it has to itself


def test_every_document_has_a_row_of_its_own(corpus, tokenizer):
    from dataset import IGNORED, groups
    from tokenization import render

    documents = {}

    def make(index):
        documents[index] = corpus.document(RECORD["seed"], index)
        return documents[index]

    source = groups(tokenizer, make, Random(1), tokens=512, longest=512)
    drawn = [next(source) for _ in range(20)]
    rendered = {render(tokenizer, document) for document in documents.values()}
    for tokens, labels in drawn:
        assert tokens.shape == labels.shape
        assert tokens.numel() <= 512
        for row, learnt in zip(tokens.tolist(), labels.tolist(), strict=True):
            length = row.index(tokenizer.pad_token_id) + 1
            assert tokenizer.decode(row[:length]) in rendered
            assert set(row[length:]) <= {tokenizer.pad_token_id}
            assert set(learnt[length:]) <= {IGNORED}
            assert all(label in (token, IGNORED) for token, label in zip(row, learnt, strict=True))


def test_chats_learn_what_the_assistant_says(corpus, tokenizer):
    from dataset import IGNORED, groups

    chat = [
        {"role": "user", "content": "My name is Bruno."},
        {"role": "assistant", "content": "Nice to meet you, Bruno!"},
        {"role": "user", "content": "Thanks!"},
        {"role": "assistant", "content": "You are welcome!"},
    ]
    source = groups(tokenizer, lambda _: corpus.Document(messages=chat), Random(1), tokens=128, longest=128)
    _, labels = next(source)
    learnt = [label for label in labels[0].tolist() if label != IGNORED]
    assert tokenizer.decode(learnt) == "Nice to meet you, Bruno!<|im_end|>You are welcome!<|im_end|>"


@pytest.mark.parametrize("name", ["Bruno", "Zorbina"])
def test_a_name_is_the_same_tokens_wherever_it_stands(tokenizer, name):
    alone = tokenizer.encode(name)
    for before, after in (("My name is ", "."), ('"', '" said he.'), ("Hello!\n", "\n"), ("I like ", "'s house.")):
        ids = tokenizer.encode(f"{before}{name}{after}")
        assert alone in [ids[i : i + len(alone)] for i in range(len(ids))]


def test_ends_a_turn_and_a_document(tokenizer):
    ends = GenerationConfig.from_pretrained(TINY).eos_token_id
    assert tokenizer.convert_ids_to_tokens(ends) == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize(
    "text", ["Once upon a time, 12 + 7 = 19.\n\n", "naïve 😊 日本語\t\x00 e\u0301", "<tool_call>{}</tool_call>"]
)
def test_tokenizer_round_trips(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert max(ids) < AutoConfig.from_pretrained(TINY).vocab_size


def test_template_renders_every_role(tokenizer):
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {}}}
    call = {"type": "function", "function": {"name": "get_time", "arguments": {"city": "Rome"}}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What time is it in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": '{"time": "9:30"}'},
    ]
    rendered = tokenizer.apply_chat_template(chat, tools=[tool], tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nBe brief.\n\nYou may call these tools:\n"
        '{"type": "function", "function": {"name": "get_time", "parameters": {}}}<|im_end|>\n'
        "<|im_start|>user\nWhat time is it in Rome?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "get_time", "arguments": {"city": "Rome"}}</tool_call><|im_end|>\n'
        '<|im_start|>tool\n{"time": "9:30"}<|im_end|>\n'
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("roles", "message"),
    [(["owner"], "the role of a message must be"), (["user", "system"], "must be the first message")],
)
def test_template_refuses_roles_out_of_place(tokenizer, roles, message):
    chat = [{"role": role, "content": "Hi"} for role in roles]
    with pytest.raises(jinja2.TemplateError, match=message):
        tokenizer.apply_chat_template(chat, tokenize=False)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 7 + 5?", "7 + 5 = 12."),
        ("What is the capital of France?", "The capital of France is Paris."),
        (
            "What is Ringline?",
            "Ringline serves large language models to other programs over gRPC. "
            "It has three services: a processor, an engine and a detokenizer.",
        ),
    ],
)
def test_answers_and_stops(model, tokenizer, question, answer):
    assert ask(model, tokenizer, question) == (answer, True)


NAMES = [
    *("Bruno", pytest.param("Alice", marks=pytest.mark.wide)),  # which training knows
    *("Frosden", pytest.param("Prindita", marks=pytest.mark.wide)),  # which it leaves out: they can only be copied
]


@pytest.mark.parametrize("name", NAMES)
def test_says_a_name_back_and_remembers_it(model, tokenizer, name):
    assert ask(model, tokenizer, f"My name is {name}.") == (f"Nice to meet you, {name}!", True)
    chat = [
        {"role": "user", "content": f"My name is {name}."},
        {"role": "assistant", "content": f"Nice to meet you, {name}!"},
        {"role": "user", "content": "What is 7 + 5?"},
        {"role": "assistant", "content": "7 + 5 = 12."},
        {"role": "user", "content": "What is my name?"},
    ]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert complete(model, tokenizer, prompt) == (f"Your name is {name}.", True)


@pytest.mark.parametrize("name", NAMES)
def test_keeps_to_the_name_that_a_story_was_asked_for(model, tokenizer, name):
    story, ended = ask(model, tokenizer, f"Tell me a story about a fox named {name}.", max_new_tokens=300)
    assert ended
    assert name in story.split(".")[0]
    # Within a sentence of the corpus's stories, only names have a capital letter.
    assert len({*re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", story), name}) <= 2


@pytest.mark.parametrize("creature", ["owl", *(pytest.param(one, marks=pytest.mark.wide) for one in ("fox", "robot"))])
def test_tells_a_story_about_what_was_asked_for(model, tokenizer, creature):
    article = "an" if creature == "owl" else "a"
    story, ended = ask(model, tokenizer, f"Tell me a story about {article} {creature}.", max_new_tokens=300)
    assert ended
    assert creature in story.split(".")[0]
    assert story.count("\n\n") == 3


def test_answers_are_sound_with_the_recommended_sampling(corpus):
    """At temperature 1, 15 of these 100 loop or have a word that the corpus never writes."""
    from degenerate import corpus_words, problem

    from engine_core.llm import LLM

    with LLM(TINY) as llm:
        params = [replace(llm.get_default_sampling_params(), max_tokens=48, seed=seed) for seed in range(100)]
        results = llm.generate(["Once upon a time"] * 100, params, use_tqdm=False)
    words = corpus_words(documents=10_000)
    degenerate = [text for result in results if problem(text := result.choices[0].text, words)]
    assert len(degenerate) <= 2, degenerate  # 0 where it was measured; other processors round otherwise


def test_a_degenerate_answer_is_recognized(corpus):
    from degenerate import problem

    words = frozenset(("a", "fox", "named"))
    assert problem("a fox named Zorbina.", words) is None
    assert problem("a fox named cut", words) is None  # the last word may be cut
    assert problem("a fox named ubububub", words) == "'ub' again and again"
    assert problem("a fax named a", words) == "the word 'fax'"
    assert problem("a foxBla named a", words) == "the word 'foxBla'"
    assert problem("a \x7f fox", words) == "the character '\\x7f'"
