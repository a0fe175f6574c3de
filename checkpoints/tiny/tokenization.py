"""The bundled model's tokenizer: a byte-level BPE trained on the corpus, with a ChatML chat template."""

import re
from collections.abc import Iterable, Iterator

from corpus import Document
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
# Tokens of their own, but text that a reader sees: they are not special, so decoding keeps them.
TOOL_CALL = ("<tool_call>", "</tool_call>")

# How GPT-4 and Qwen split text before merging (words with their space, single digits, runs of marks, line ends), but
# that a word with a capital letter stands without its space: a name is then the same tokens wherever it stands.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{Lu}\p{L}*|[^\r\n\p{L}\p{N}]?(?!\p{Lu})\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(documents: Iterable[Document], vocabulary: int, chat_template: str) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` tokens; the special ones come first, the whole byte alphabet is in it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TOOL_CALL),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Rendering needs only the template, so a wrapper without a vocabulary makes the text that the vocabulary is from.
    tokenizer.train_from_iterator(_text_between_special_tokens(_wrap(tokenizer, chat_template), documents), trainer)
    tokenizer.add_tokens(list(TOOL_CALL))
    return _wrap(tokenizer, chat_template)


def _wrap(tokenizer: Tokenizer, chat_template: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START, TURN_END],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        chat_template=chat_template,
    )


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of a token that the vocabulary has."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def render(tokenizer: PreTrainedTokenizerFast, document: Document) -> str:
    """The document as the model reads it, with the token that ends it."""
    if document.text is not None:
        return document.text + END_OF_TEXT
    chat = tokenizer.apply_chat_template(document.messages, tools=[*document.tools], tokenize=False)
    return f"{chat}{END_OF_TEXT}"


def _text_between_special_tokens(tokenizer: PreTrainedTokenizerFast, documents: Iterable[Document]) -> Iterator[str]:
    """The text in which merges may be learnt: the trainer does not know that special tokens stand alone."""
    separators = re.compile("|".join(re.escape(token) for token in (END_OF_TEXT, TURN_START, TURN_END, *TOOL_CALL)))
    for document in documents:
        yield from separators.split(render(tokenizer, document))
