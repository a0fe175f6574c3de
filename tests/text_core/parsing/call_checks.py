"""Whether the calls that a published chat template shows are read back, and are what demanded calls must be."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from tests.text_core.parsing.byte_tokenizers import byte_tokenizer
from tests.text_core.parsing.parsing import merged, parse, tokens_parsed
from tests.text_core.parsing.rendering_checks import (
    QUESTION,
    SCHEMAS,
    TOOLS,
    TWO_CALLS,
    Calls,
    Checked,
    Message,
    calling,
)
from text_core.answer_grammar import AnswerForm, ToolCalls, answer_grammar
from text_core.chat_templates import ChatTemplateError, ChatTemplates
from text_core.grammar.checker import GrammarChecker
from text_core.grammar.constraints import ConstraintError
from text_core.grammar.token_table import token_table
from text_core.parsing.argument_types import listed_types
from text_core.parsing.detection import before_answer
from text_core.parsing.formats import NONE, REASONING_FORMATS, TOOL_FORMATS, marker_texts
from text_core.parsing.parts import Content, ParseOptions, Part, Reasoning, ToolCallPiece
from text_core.parsing.tool_grammar import ToolSpec

_RICH: dict[str, Any] = {
    "text": 'She said "it\'s\\ {so}", [1] = 2.\nZürich: 東京 😀 & \t<b>',
    "count": -7,
    "share": 0.25,
    "whole": True,
    "unit": "stone",
    "tags": ["a b", "5", "é\"'\n"],
    "place": {"name": "true", "at": [1, 2.5], "inner": {"open": False, "code": "07"}},
}
_SHOWN: dict[str, Calls] = {
    "rich": [("weigh_things", _RICH)],
    "plain": [("weigh_things", {"text": "12", "count": 0, "share": 3, "whole": False, "tags": []})],
    "two": TWO_CALLS,
}
"""Calls to be shown and read back."""
_BESIDE: tuple[dict[str, str], ...] = ({}, {"content": "So."}, {"reasoning_content": "Hm."})
"""What a message has beside its calls."""
_WRONG: dict[str, Calls] = {
    "a tool that there is not": [("look_down", {"text": "x"})],
    "a call without a required argument": [("weigh_things", {"text": "x"})],
    "an argument that there is not": [("look_up", {"text": "x", "more": "y"})],
    "a text for a number": [("weigh_things", {"text": "x", "count": "seven"})],
    "a value that is not listed": [("weigh_things", {"text": "x", "count": 1, "unit": "mile"})],
}
"""Calls that must not be allowed where calls are demanded."""
_IDS = {"kimi_k2": "functions.{1}:{0}", "solar_open": "abc000000{}"}
"""The form of ids that models write themselves."""
_NO_CALLS = "shows no calls"
_PYTHONIC = ("pythonic", "lfm2", "olmo3")
_TOKENS = re.compile(r"\s+|<[^<>\n]{1,40}>(?:assistant|message)?|\[[^\[\]\s]{1,40}[\[\]]", re.IGNORECASE)
"""Tokens that end a turn, or begin another one."""


def check_calls(checked: Checked, templates: ChatTemplates, text: str) -> None:
    """Read and demand the calls that the template shows; ``text``: the template's."""
    demanded = _Demanded(text)
    id_form = _IDS.get(checked.calls, "call0000{}")
    for (name, calls), beside in itertools.product(_SHOWN.items(), _BESIDE):
        if "content" in beside and checked.calls in ("pythonic", "llama3_json", "xlam"):
            continue  # a text before it hides a call
        try:
            shown = _Shown.of(checked, templates, calling(calls, id_form, **beside))
        except ChatTemplateError as error:
            reason = str(error).removeprefix("the chat template failed: ").rstrip(".!")
            checked.note(f"refuses {'a call' if len(calls) == 1 else 'two calls'}: {reason}")
            continue
        if fault := shown.fault_of_template(calls, beside):
            if _NO_CALLS not in checked.notes:
                checked.note(fault)
            continue
        what = ", ".join([name, *beside])
        faults = [*shown.faults_of_reading(calls, beside), *shown.faults_of_cuts()]
        checked.faults += [f"{what}: {fault}" for fault in faults]
        checked.read += not faults
        if faults or "content" in beside:
            continue
        if (fault := demanded.fault(shown)) is None:
            checked.demanded += 1
        elif fault.endswith("from '' on"):
            checked.note("leaves out what ends calls")
        elif shown.has_notation_of_its_own(calls):
            checked.note("writes values in another notation than JSON's")
        else:
            checked.faults.append(f"{what}: {fault}")
    for name, calls in _WRONG.items():
        with suppress(ChatTemplateError):  # noted above
            shown = _Shown.of(checked, templates, calling(calls, id_form))
            if demanded.fault(shown) is None:
                checked.faults.append(f"demanded calls allow {name}: {shown.answer!r}")


@dataclass
class _Shown:
    """An answer as a template shows it."""

    answer: str
    options: ParseOptions
    whole: list[Part]
    """What is read in it."""

    @classmethod
    def of(cls, checked: Checked, templates: ChatTemplates, message: Message) -> _Shown:
        answer = ""
        with suppress(ChatTemplateError):  # some fail without tools, or show no calls
            answer = _answer(templates, message, None)
        if message["tool_calls"][0]["function"]["name"] not in answer:
            answer = _answer(templates, message, TOOLS)
        form = TOOL_FORMATS[checked.calls]
        types = tuple(listed_types(SCHEMAS, 4 if form.nests_text else None)) if form.writes_text else ()
        inside = False  # the prompt has opened the reasoning
        if (reasoning := REASONING_FORMATS.get(checked.reasoning)) is not None and not form.grammar_has_reasoning:
            begun, closing, _ = answer.partition(reasoning.closing)
            inside = bool(closing) and reasoning.opening not in begun
        options = ParseOptions(checked.calls, checked.reasoning, inside, tuple(SCHEMAS), types, b"seed")
        *_, whole = parse([answer], options)
        end = whole[-1].text if whole and isinstance(whole[-1], Content) else ""
        if len(whole) > 1 and not _bare(end):  # no parser is given the token that ends the turn
            answer = answer.removesuffix(end)
            *_, whole = parse([answer], options)
        return cls(answer, options, whole)

    def fault_of_template(self, calls: Calls, beside: dict[str, str]) -> str | None:
        """Why the answer cannot be read back, where that is the template's."""
        if all(name not in self.answer for name, _ in calls):
            return "shows no calls beside text" if "content" in beside else _NO_CALLS
        if any(name not in self.answer for name, _ in calls):
            return "shows one call of two"
        form = TOOL_FORMATS[self.options.tool_calls]
        if not form.needs_names and not form.is_in(self.answer):
            return "shows calls in another form"
        if re.search(r"<escape>(-?\d|\[\])<escape>", self.answer):
            return "shows all values as texts"
        if self.options.tool_calls in _PYTHONIC:
            for key, value in itertools.chain(*(arguments.items() for _, arguments in calls)):
                written = (json.dumps(value, ensure_ascii=False), repr(value))
                if not any(f"{key}={each}{end}" in self.answer for each in written for end in (", ", ")")):
                    return "shows values otherwise than Python does"
        return None

    def faults_of_reading(self, calls: Calls, beside: dict[str, str]) -> Iterator[str]:
        read = [part for part in self.whole if isinstance(part, ToolCallPiece)]
        if [part.name for part in read] != [name for name, _ in calls]:
            yield f"read as {self.whole} from {self.answer!r}"
            return
        for part, (_, arguments) in zip(read, calls, strict=True):
            if _sorted(_parsed(part.arguments)) != _sorted(arguments):
                yield f"read as {part.arguments} from {self.answer!r}"
        content = _bare("".join(part.text for part in self.whole if isinstance(part, Content)))
        reasoning = "".join(part.text for part in self.whole if isinstance(part, Reasoning)).strip()
        given = "".join(text for text in beside.values() if text in self.answer)
        if content + reasoning != given or ("content" not in beside and content):  # some show text as reasoning
            yield f"read as content {content!r}, reasoning {reasoning!r} from {self.answer!r}"

    def faults_of_cuts(self) -> Iterator[str]:
        *known, whole = parse(self.answer, self.options)
        for at in range(1, len(self.answer)):
            first, second, end = parse([self.answer[:at], self.answer[at:]], self.options)
            if (first, second, end) != (known[at - 1], known[-1], self.whole) or whole != self.whole:
                yield f"read as {first}, {end} if it is cut behind {self.answer[:at]!r}"
                return
        for special in ((), marker_texts(self.options)):
            tokenizer = byte_tokenizer(special)
            ids = tokenizer.encode(self.answer)
            read = merged(tokens_parsed(tokenizer, self.options, ids, range(1, len(ids) + 1)))
            if read != self.whole:
                yield f"read as {read} by tokens, {'some' if special else 'none'} of them special, from {self.answer!r}"

    def has_notation_of_its_own(self, calls: Calls) -> bool:
        """Whether an object or list is not in JSON as models are to write it."""
        values = [value for _, arguments in calls for value in arguments.values() if isinstance(value, list | dict)]
        in_lines = re.search(r'[\[{,]\n +"', self.answer) is not None
        return in_lines or any(json.dumps(value, ensure_ascii=False) not in self.answer for value in values)


class _Demanded:
    """What demanded calls may be, for a model whose special tokens are the markers of which its template speaks."""

    def __init__(self, template: str) -> None:
        known = [form.markers for form in TOOL_FORMATS.values()] + [form.markers for form in REASONING_FORMATS.values()]
        markers = dict.fromkeys(marker for each in known for marker in each if marker in template)
        self._tokenizer = byte_tokenizer([*markers, "</s>"])
        end = self._tokenizer.token_id("</s>") or 0
        self._marker = GrammarChecker(self._tokenizer, self._tokenizer.vocab_size, [end]).marker
        self._table = token_table(self._tokenizer, self._tokenizer.vocab_size, [end], with_slices=False)
        self._matchers: dict[bool, LLMatcher] = {}
        """By whether the prompt has opened the reasoning."""

    def fault(self, shown: _Shown) -> str | None:
        """Why an answer is not allowed, but for what ends the turn; None if it is."""
        try:
            matcher = self._matcher(shown.options)
        except ConstraintError as error:
            return f"cannot be demanded: {error.problem}"
        if matcher.is_error():
            return f"cannot be demanded: {matcher.get_error()}"
        ids = self._tokenizer.encode(shown.answer)
        taken, last = 0, -1
        while taken < len(ids) and matcher.try_consume_tokens([ids[taken]]):
            taken += 1
            last = taken if matcher.is_accepting() else last
        if last >= 0 and not _bare(self._tokenizer.decode(ids[last:], skip_special_tokens=False)):
            return None
        rest = self._tokenizer.decode(ids[taken:], skip_special_tokens=False)
        return f"not allowed where calls are demanded, from {rest!r} on"

    def _matcher(self, options: ParseOptions) -> LLMatcher:
        inside = options.begins_in_reasoning
        if inside not in self._matchers:
            tools = tuple(ToolSpec(name, schema, strict=True) for name, schema in SCHEMAS.items())
            has_reasoning = options.reasoning != NONE
            calls = ToolCalls(tools, required=True)
            form = AnswerForm(calls, has_reasoning, options.reasoning, inside, options.tool_calls)
            self._matchers[inside] = LLMatcher(self._table, answer_grammar(form, self._marker), log_level=0)
        self._matchers[inside].reset()
        return self._matchers[inside]


def _answer(templates: ChatTemplates, message: Message, tools: Any) -> str:
    """The last message of a rendered chat, without the blanks of a template's own lines."""
    chat = templates.render([QUESTION, message], tools=tools, add_generation_prompt=False)
    prompt = templates.render([QUESTION], tools=tools)
    chat, prompt = (re.sub(" {2,}(?=\n?<)|(?<=<s>)\n +", "", text) for text in (chat, prompt))
    return chat[len(before_answer(chat, prompt)) :]


def _bare(text: str) -> str:
    """``text`` without tokens."""
    return _TOKENS.sub("", text)


def _sorted(arguments: Any) -> str:
    """Arguments to be compared: types count, the order does not, as some templates sort them."""
    return json.dumps(arguments, sort_keys=True)


def _parsed(arguments: str) -> Any:
    """None if they are no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return None
