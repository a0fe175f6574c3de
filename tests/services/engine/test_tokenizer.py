"""The tokenizer's files as the engine sends them: read as they are, or converted from an older kind."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from transformers import AutoTokenizer

from engine_core.config import ModelConfig, ModelSpec
from engine_core.errors import CheckpointError
from engine_core.structured_output.compiler import GrammarsUnavailableError
from engine_core.worker.grammars import open_grammars
from services.engine.tokenizer import CHUNK_BYTES, checked_tokenizer, chunks, read_tokenizer, warn_without_template
from tests.programs import output_of
from tests.ring import MODEL
from tests.text_core.families import FAMILIES
from tests.text_core.trained_tokenizers import byte_level, tokenizer_json
from text_core.tokenizer import Tokenizer
from text_core.tokenizer_files import NO_TOKENIZER, fingerprint

pytestmark = pytest.mark.long

SENTENCES = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"] * 20
TEXTS = [SENTENCES[0], " Zebras… 日本語", "if x:\n        return  'jugs'    # five     dozen"]

TRAINING = """
import json, sys
import sentencepiece
from pathlib import Path

directory, sentences, texts = Path(sys.argv[1]), *json.loads(sys.argv[2])
corpus = directory / "corpus.txt"
corpus.write_text("\\n".join(sentences))
sentencepiece.SentencePieceTrainer.train(
    input=str(corpus),
    model_prefix=str(directory / "tokenizer"),
    vocab_size=330,
    model_type="bpe",
    byte_fallback=True,
    hard_vocab_limit=False,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    allow_whitespace_only_pieces=True,
    minloglevel=2,
)
config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
(directory / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": True}))
reference = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
ids = [reference.encode(text) for text in texts]
print(json.dumps([[[reference.bos_id(), *one], reference.decode(one)] for one in ids]))
"""
"""Trains a SentencePiece model, and prints what SentencePiece makes of the texts."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[list[int], str]]]:
    """A checkpoint of the days before tokenizer.json, a SentencePiece model and a class name; and, by SentencePiece,
    ids and decoded text of each of ``TEXTS``. Made in another process, which sentencepiece's OpenMP runtime ends with.
    """
    directory = tmp_path_factory.mktemp("sentencepiece")
    printed = output_of(sys.executable, "-c", TRAINING, directory, json.dumps([SENTENCES, TEXTS]))
    return directory, json.loads(printed.splitlines()[-1])


def test_what_is_there_is_sent_as_it_is() -> None:
    files = read_tokenizer(ModelConfig(model=str(MODEL)))
    assert files["tokenizer.json"] == (MODEL / "tokenizer.json").read_bytes()
    assert "chat_template.jinja" in files
    assert not any(name.endswith(".safetensors") for name in files)


def test_a_template_that_is_given_is_sent_instead_of_the_checkpoints() -> None:
    files = read_tokenizer(ModelConfig(model=str(MODEL), chat_template="{{ messages[0].content }}"))
    assert files["chat_template.jinja"] == b"{{ messages[0].content }}"
    assert fingerprint(files) != fingerprint(read_tokenizer(ModelConfig(model=str(MODEL))))


def test_the_log_says_that_a_model_without_template_has_no_chats() -> None:
    files = read_tokenizer(ModelConfig(model=str(MODEL)))
    with capture_logs() as logged:
        warn_without_template(files)
        warn_without_template(NO_TOKENIZER)
    assert logged == []
    del files["chat_template.jinja"]
    with capture_logs() as logged:
        warn_without_template(files)
    (warning,) = logged
    assert warning["log_level"] == "warning"
    assert "--chat-template" in warning["event"]


def test_without_a_tokenizer_none_is_read(tmp_path: Path) -> None:
    files = read_tokenizer(ModelConfig(model=str(tmp_path / "nothing"), skip_tokenizer_init=True))
    assert checked_tokenizer(files).is_empty
    with pytest.raises(GrammarsUnavailableError, match="--skip-tokenizer-init"):
        open_grammars(
            ModelConfig(model=str(MODEL), skip_tokenizer_init=True), ModelSpec("m", "A", 9, 9, (1,), "float32", {})
        )


CONVERTING = """
import json, sys
from pathlib import Path
from engine_core.config import ModelConfig
from engine_core.model_loader import convert_tokenizer
from services.engine.tokenizer import read_tokenizer
from text_core.tokenizer import Tokenizer

checkpoint, later, texts = *map(Path, sys.argv[1:3]), json.loads(sys.argv[3])
converted = [Tokenizer.from_files(read_tokenizer(ModelConfig(model=str(checkpoint))))]
assert "sentencepiece" not in sys.modules
assert convert_tokenizer.main(str(later), str(later / "converted")) == 0
for ours in (*converted, Tokenizer.from_directory(later / "converted")):
    print(json.dumps([[ids, ours.decode(ids)] for ids in map(ours.encode, texts)]))
"""
"""Converts one checkpoint as an engine does, by another process, and one by itself."""


def test_an_older_kind_is_converted_and_nothing_is_kept_of_what_that_takes(
    trained: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    config = json.loads((trained[0] / "tokenizer_config.json").read_bytes())
    checkpoints = [shutil.copytree(trained[0], tmp_path / kind) for kind in ("legacy", "later")]
    for checkpoint, legacy in zip(checkpoints, (True, False), strict=True):
        (checkpoint / "tokenizer_config.json").write_text(json.dumps(config | {"legacy": legacy}))
    printed = output_of(sys.executable, "-c", CONVERTING, *checkpoints, json.dumps([*TEXTS, "</s>the"]))
    for line, legacy in zip(printed.splitlines()[-2:], (True, False), strict=True):
        *converted, (after_special, _) = json.loads(line)
        equal = [one == expected for one, expected in zip(converted, trained[1], strict=True)]
        assert equal == [True, legacy, True]  # the second text begins with a space
        the = trained[1][0][0][1]  # with the space before it
        assert (after_special[2:] == [the]) == legacy


def test_vocabulary_and_merges_are_converted_with_the_configured_bos(tmp_path: Path) -> None:
    """As OPT's are: here, where there is no tokenizer.json, ``add_bos_token`` counts."""
    spec = json.loads(tokenizer_json(byte_level()))
    merges = "\n".join(["#version: 0.2", *map(" ".join, spec["model"]["merges"])])
    config = FAMILIES["opt"].config
    contents = {
        "config.json": {"model_type": "opt"},
        "tokenizer_config.json": config,
        "vocab.json": spec["model"]["vocab"],
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "merges.txt").write_text(merges)
    ours = Tokenizer.from_files(read_tokenizer(ModelConfig(model=str(tmp_path))))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "", "</s>the fox</s>"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text)[0] == ours.token_id("</s>") == ours.bos_token_id


def test_another_tokenizer_can_be_named(trained: tuple[Path, list[tuple[list[int], str]]]) -> None:
    named = read_tokenizer(ModelConfig(model=str(trained[0]), tokenizer=str(MODEL)))
    bundled = read_tokenizer(ModelConfig(model=str(MODEL)))
    assert checked_tokenizer(named).fingerprint() == checked_tokenizer(bundled).fingerprint()


@pytest.mark.parametrize("files", [(), ("config.json", "tokenizer_config.json"), ("vocab.json",)])
def test_a_checkpoint_without_tokenizer_says_which_files_are_expected(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Also where transformers would make an empty one of what ``config.json`` says."""
    for name in files:
        (tmp_path / name).write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(CheckpointError) as refused:
        read_tokenizer(ModelConfig(model=str(tmp_path)))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(
        f"{tmp_path} has no tokenizer: expected tokenizer.json, or one of tekken.json, tokenizer.model, "
    )
    assert "vocab.json with merges.txt" in line


def test_what_cannot_be_converted_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.model").write_bytes(b"no such thing")
    with pytest.raises(CheckpointError, match=r"cannot be converted: \S") as refused:
        read_tokenizer(ModelConfig(model=str(tmp_path)))
    assert len(str(refused.value).splitlines()) == 1


def test_what_cannot_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="tokenizer"):
        checked_tokenizer(read_tokenizer(ModelConfig(model=str(tmp_path / "broken"))))


def test_the_file_that_is_broken_is_named_and_no_other(tmp_path: Path) -> None:
    broken = shutil.copytree(MODEL, tmp_path / "broken")
    (broken / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"^generation_config\.json is not valid JSON: "):
        checked_tokenizer(read_tokenizer(ModelConfig(model=str(broken))))


def test_a_chat_template_that_cannot_be_compiled_is_found_at_start(tmp_path: Path) -> None:
    broken = shutil.copytree(MODEL, tmp_path / "broken")
    (broken / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")
    with pytest.raises(CheckpointError, match=r"^chat_template\.jinja has an error in line 1: "):
        checked_tokenizer(read_tokenizer(ModelConfig(model=str(broken))))


def test_chunks_are_bounded_and_complete() -> None:
    files = {"tokenizer.json": bytes(range(256)) * 10_000, "chat_template.jinja": b""}
    sent = list(chunks(files))
    assert max(len(chunk.data) for chunk in sent) <= CHUNK_BYTES
    for name, data in files.items():
        assert b"".join(chunk.data for chunk in sent if chunk.name == name) == data
        assert {chunk.total_bytes for chunk in sent if chunk.name == name} == {len(data)}
