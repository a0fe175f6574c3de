"""Chat templates: render messages to the prompt's text, as transformers' ``apply_chat_template`` does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

from text_core.message_parts import PROBED_TEXT, as_parts, as_text, has_pictures, probe
from text_core.message_turns import in_turns
from text_core.parsing.detection import PROBED_ARGUMENTS, PROBED_NAME, calls_in, calls_shown, reasoning_in
from text_core.parsing.formats import NONE
from text_core.special_tokens import read_special_tokens
from text_core.system_messages import ARRANGEMENTS, has_more_than_the_first, marked, shows_all, shows_in_order
from text_core.template_budget import TIME_LIMIT_S, text_size
from text_core.template_sandbox import MAX_RENDERED_CHARS, BoundedEnvironment, OutputTooLongError
from text_core.tokenizer_files import ADDITIONAL_TEMPLATES, TokenizerError, load_json
from text_core.tools_as_text import FORMAT as TOOLS_AS_TEXT
from text_core.tools_as_text import tools_as_text

Message = Mapping[str, Any]
"""A message: ``role``, ``content`` (text or a list of parts); optional ``tool_calls``, ``tool_call_id``, ``name``, …"""

MAX_TEMPLATE_CHARS = 1 << 20
NO_TEMPLATE = (
    "the model has no chat template (its checkpoint has no chat_template.jinja, and no chat_template in "
    "tokenizer_config.json): start its engine with --chat-template FILE, or send the prompt as text or as ids"
)

_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys that a message may use for its reasoning; the first one present is used."""
_CONTINUE_MARKER = "RINGLINE-CONTINUES-HERE "
"""Appended to the message to be continued; its trailing blank shows whether the template trims."""

_PROBED_CALL = {"name": PROBED_NAME, "arguments": PROBED_ARGUMENTS}
_PROBE: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "probe0001", "type": "function", "function": _PROBED_CALL}],
    },
]
"""Messages that call a tool."""
_PROBED_TOOLS = [
    {
        "type": "function",
        "function": {"name": PROBED_NAME, "description": "x", "parameters": {"type": "object", "properties": {}}},
    }
]


class ChatTemplateError(ValueError):
    """The messages cannot be rendered; the text is one sentence."""


class ChatTooLongError(ChatTemplateError):
    """The prompt's text would be longer than allowed."""


class UnknownTemplateError(ChatTemplateError):
    """The model has no template of that name."""


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template's text."""

    text: str
    origin: str = "the chat template"
    """Its source, such as a file name, for messages."""


@dataclass(frozen=True, slots=True)
class _Detected:
    """What a template shows."""

    calls: str
    """The format of calls, or none."""
    reasoning: str
    """The format of reasoning, or none."""
    has_tools: bool
    """Whether it shows tools or calls in whatever form."""
    has_system: bool
    """Whether it shows system messages."""


@dataclass(frozen=True, slots=True)
class _CallForm:
    """The form in which a template expects messages that call tools; templates differ in it."""

    null_content: bool = False
    """Missing content must be null, as in OpenAI's API; otherwise the template does not show the calls."""
    text_arguments: bool = False
    """A call's arguments must be JSON text."""

    def of(self, message: dict[str, Any]) -> dict[str, Any]:
        """``message`` converted to this form if it calls tools, else unchanged."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        changed = dict(message)
        if self.null_content and not message.get("content"):
            changed["content"] = None
        if self.text_arguments:
            changed["tool_calls"] = [_with_text_arguments(call) for call in calls]
        return changed


_CALL_FORMS = (
    _CallForm(),
    _CallForm(null_content=True),
    _CallForm(text_arguments=True),
    _CallForm(null_content=True, text_arguments=True),
)


class ChatTemplates:
    """A model's chat templates by name, usually only ``default``."""

    def __init__(
        self,
        templates: Mapping[str, TemplateSource],
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """``special_tokens``: variables such as ``bos_token``; ``now`` returns the time that ``strftime_now`` formats.

        Raises ``ChatTemplateError`` for a template that cannot be compiled.
        """
        self._sources = dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._environment = _environment(now)
        self._compiled = {name: self._compile(source) for name, source in self._sources.items()}
        self._call_forms: dict[str, _CallForm] = {}
        """The call form of each template that has rendered tool calls, keyed by the template's name."""
        self._formats: dict[str, _Detected] = {}
        """What each template shows, keyed by the template's name."""
        self._forms_shown: dict[tuple[str, str, bool, bool], bool] = {}
        """Whether a template shows content in a form: name, placeholder, with a picture, in parts."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> ChatTemplates:
        """Load from a tokenizer's files; separate template files override those in ``tokenizer_config.json``.

        Raises ``ChatTemplateError`` or ``TokenizerError``, naming the file.
        """
        return cls(_sources(files), read_special_tokens(files).named)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the templates; empty if the model has none."""
        return tuple(self._sources)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_name: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
        max_chars: int = MAX_RENDERED_CHARS,
        placeholder: str = "",
    ) -> str:
        """The prompt's text. Encode it without adding special tokens: the template writes them.

        A template that shows neither tools nor calls gets both as text (``tools_as_text``).

        A message that calls tools is converted to the form that the template expects: DeepSeek V3's wants null for
        missing content and JSON text for arguments, on which other templates fail. Arguments that are text,
        because a model wrote no JSON object, stay text; a template that fails on it gets the text within an object.

        System messages after the first message stay in place if the template shows them there; else they are merged or
        moved (``system_messages``). Messages of the user that a template refuses for the turn become part of the
        message before them (``message_turns``).

        Pictures, parts ``{"type": "image"}`` of a content, become ``placeholder``: by the template itself if it takes
        lists of parts, else in the text that it gets (``message_parts``). Without it they stay as they are.

        ``tools`` and ``documents`` are passed to the template unchanged; documents may be among ``template_args``, too.
        ``template_name`` defaults to ``tool_use`` if there are tools and the model has such a template, else to
        ``default``. ``add_generation_prompt`` opens the assistant's message; ``continue_final_message`` instead leaves
        the last message open. ``template_args`` are further variables. Raises ``ChatTemplateError``, among them
        ``ChatTooLongError`` if the text is longer than ``max_chars``.
        """
        arguments = template_args or {}
        if not messages:
            raise ChatTemplateError("a chat needs at least one message")
        if add_generation_prompt and continue_final_message:
            raise ChatTemplateError(
                "continue_final_message and add_generation_prompt are both set: expected one of the two"
            )
        if clash := sorted(set(arguments) & set(_OWN_VARIABLES)):
            raise ChatTemplateError(f"template arguments must not be named {', '.join(clash)}")
        name = self._choose(template_name, tools is not None)
        chat = self._with_contents(name, [_normalized(message) for message in messages], placeholder)
        if tools and not (shows := self._detected(name)).has_tools:
            chat, tools = tools_as_text(chat, tools, in_system=shows.has_system), None
        if any(message.get("tool_calls") for message in chat):
            form = self._call_form(name)
            chat = [form.of(message) for message in chat]
        variables = {
            **self._special_tokens,
            "documents": documents,
            **arguments,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        if has_more_than_the_first(chat):
            chat = self._arranged(name, chat, variables, placeholder)
        continued = _mark_final(chat, self._sources[name].text) if continue_final_message else None
        rendered = self._rendered(name, chat, variables, max_chars)
        return rendered if continued is None else _cut_at_mark(rendered, continued)

    def _with_contents(self, name: str, chat: list[dict[str, Any]], placeholder: str) -> list[dict[str, Any]]:
        """``chat`` with contents that the template shows. Raises ``ChatTemplateError`` if it shows no pictures."""
        pictures = has_pictures(chat)
        if pictures and not placeholder:
            return chat  # nobody counts them
        if not pictures or self._shows(name, placeholder, picture=True, in_parts=True):
            takes_text = self._shows(name, "", picture=False, in_parts=False)
            if takes_text or not self._shows(name, "", picture=False, in_parts=True):
                return chat
            return list(map(as_parts, chat))
        if self._shows(name, "", picture=False, in_parts=False):
            return [as_text(message, placeholder) for message in chat]
        raise ChatTemplateError("the chat template shows no pictures")

    def _shows(self, name: str, placeholder: str, *, picture: bool, in_parts: bool) -> bool:
        """Whether the template shows content in this form: its text, and its picture once as ``placeholder``."""
        key = name, placeholder, picture, in_parts
        if key not in self._forms_shown:
            shown = self._probed(name, probe(picture=picture, in_parts=in_parts))
            in_notation = in_parts and "'text'" in shown  # it prints the list itself
            seen = not picture or shown.count(placeholder) == 1
            self._forms_shown[key] = PROBED_TEXT in shown and seen and not in_notation
        return self._forms_shown[key]

    def _rendered(self, name: str, chat: list[dict[str, Any]], variables: Mapping[str, Any], max_chars: int) -> str:
        """``chat`` in the first form that the template takes; raises what it says of the chat as it is."""
        end = time.thread_time() + TIME_LIMIT_S  # for all other forms together; each rendering has its own limit, too
        try:
            return self._render(name, {**variables, "messages": chat}, max_chars)
        except ChatTooLongError:
            raise
        except ChatTemplateError as error:
            problem = error
        tried = [chat]
        turns = in_turns(chat)
        for form in ([*map(_with_object_arguments, chat)], turns, [*map(_with_object_arguments, turns)]):
            if form not in tried and time.thread_time() < end:
                tried.append(form)
                with suppress(ChatTemplateError):
                    return self._render(name, {**variables, "messages": form}, max_chars)
        raise problem

    def formats(self, template_name: str | None, has_tools: bool) -> tuple[str, str]:
        """Names of a template's formats of tool calls and reasoning; ``none`` without such a template.

        The template is the one that ``render`` uses.
        """
        name = template_name or ("tool_use" if has_tools and "tool_use" in self._sources else "default")
        if name not in self._sources:
            return NONE, NONE
        found = self._detected(name)
        calls = found.calls if found.has_tools or not has_tools else TOOLS_AS_TEXT
        return calls, found.reasoning

    def _detected(self, name: str) -> _Detected:
        """What a template shows and, of calls that it does not show, of which it speaks."""
        if name not in self._formats:
            source, form = self._sources[name].text, self._call_form(name)
            question, call = map(form.of, _PROBE)
            shown = self._probed(name, [question, call], add_generation_prompt=False)
            prompt = self._probed(name, [question])
            calls = calls_shown(shown, prompt, source) if PROBED_NAME in shown else calls_in(source)
            with_tools = self._probed(name, [question], tools=_PROBED_TOOLS)
            with_system = self._probed(name, [{"role": "system", "content": PROBED_NAME}, question])
            self._formats[name] = _Detected(
                calls,
                reasoning_in(f"{source}\n{shown}"),
                has_tools=calls != NONE or PROBED_NAME in shown + with_tools,
                has_system=PROBED_NAME in with_system,
            )
        return self._formats[name]

    def _probed(self, name: str, chat: list[dict[str, Any]], **changed: object) -> str:
        """What a template makes of ``chat``; empty if it fails."""
        variables = {"tools": None, "documents": None, "add_generation_prompt": True, **changed}
        try:
            return self._render(name, {**self._special_tokens, **variables, "messages": chat}, MAX_RENDERED_CHARS)
        except ChatTemplateError:
            return ""

    def _choose(self, name: str | None, has_tools: bool) -> str:
        if not self._sources:
            raise ChatTemplateError(NO_TEMPLATE)
        if name is None:
            name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            known = ", ".join(sorted(self._sources))
            raise UnknownTemplateError(f"the model has no chat template named {name!r}: expected one of {known}")
        return name

    def _call_form(self, name: str) -> _CallForm:
        """The first form with which the template shows a call; the plain one if none does, or if it takes too long.

        Where the template writes more for empty content than for none, such as a turn of its own, it means none.
        """
        if name not in self._call_forms:
            end = time.thread_time() + TIME_LIMIT_S  # for all forms together; each rendering has its own limit, too
            in_time = takewhile(lambda _: time.thread_time() < end, _CALL_FORMS)
            shown = ((form, call) for form in in_time if (call := self._shown_call(name, form)) is not None)
            form, call = next(shown, (_CALL_FORMS[0], ""))
            if call and not form.null_content:
                other = replace(form, null_content=True)
                null = self._shown_call(name, other)
                form = other if null is not None and len(null) < len(call) else form
            self._call_forms[name] = form
        return self._call_forms[name]

    def _shown_call(self, name: str, form: _CallForm) -> str | None:
        """How the template shows a call in this form; None if it does not."""
        chat = [form.of(message) for message in _PROBE]
        variables = {**self._special_tokens, "messages": chat, "tools": None, "documents": None}
        try:
            rendered = self._render(name, variables | {"add_generation_prompt": False}, MAX_RENDERED_CHARS)
        except ChatTemplateError:
            return None
        # A template that prints the arguments unchanged expects JSON text. One that prints the whole call is fine: its
        # output equals that of transformers.
        in_pythons_notation = str(_PROBED_CALL["arguments"]) in rendered.replace(str(_PROBED_CALL), "")
        shows = "probed_call" in rendered and "probed_argument" in rendered and not in_pythons_notation
        return rendered if shows else None

    def _arranged(
        self, name: str, chat: list[dict[str, Any]], variables: Mapping[str, Any], placeholder: str
    ) -> list[dict[str, Any]]:
        """``chat`` in the first arrangement in which the template shows all system messages, else unchanged.

        Raises ``ChatTemplateError`` if the template shows pictures in another order in all of them.
        """
        short, marks = marked(chat, placeholder)
        are_moved = False
        few_tools = {**variables, "tools": variables["tools"] and variables["tools"][:1]}
        end = time.thread_time() + TIME_LIMIT_S  # for all arrangements together; each rendering has its own limit, too
        for arranged in ARRANGEMENTS:
            if time.thread_time() > end:  # keeping the chat unchanged would make the prompt depend on load
                limit = f"{TIME_LIMIT_S:g} s of processor time"
                raise ChatTemplateError(f"no place for the system's messages in {limit}: put them first")
            try:
                probe = few_tools | {"messages": list(map(_with_object_arguments, arranged(short)))}
                shown = self._render(name, probe, MAX_RENDERED_CHARS)
            except ChatTemplateError:
                continue
            if shows_all(shown, marks):
                if shows_in_order(shown, marks):
                    return arranged(chat)
                are_moved = True
        if are_moved:
            raise ChatTemplateError("the chat template moves pictures of the system's messages: let the user send them")
        return chat

    def _render(self, name: str, variables: Mapping[str, Any], max_chars: int) -> str:
        try:
            rendered = self._environment.render(self._compiled[name], variables, max_chars)
            rendered.encode()
        except UnicodeEncodeError as error:
            raise ChatTemplateError("the rendered chat is not valid Unicode: it has half a surrogate pair") from error
        except RecursionError as error:
            raise ChatTemplateError("the chat template nests too deeply") from error
        except OutputTooLongError as error:
            raise ChatTooLongError(f"the chat is longer than {max_chars} characters") from error
        except Exception as error:  # templates can raise anything
            raise ChatTemplateError(f"the chat template failed: {_sentence(error)}") from error
        return rendered

    def _compile(self, source: TemplateSource) -> Template:
        if len(source.text) > MAX_TEMPLATE_CHARS:
            raise ChatTemplateError(f"{source.origin} is longer than {MAX_TEMPLATE_CHARS} characters")
        try:
            return self._environment.template(source.text)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"{source.origin} has an error in line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError) as error:  # Python's compiler allows 20 nested loops
            raise ChatTemplateError(f"{source.origin} nests too deeply") from error


def _sources(files: Mapping[str, bytes]) -> dict[str, TemplateSource]:
    prefix = ADDITIONAL_TEMPLATES + "/"
    own = {"default": "chat_template.jinja"} if "chat_template.jinja" in files else {}
    own |= {
        file.removeprefix(prefix).removesuffix(".jinja"): file
        for file in files
        if file.startswith(prefix) and file.endswith(".jinja")
    }
    if own:
        return {name: TemplateSource(_decoded(file, files[file]), file) for name, file in own.items()}
    declared = load_json(files, "tokenizer_config.json").get("chat_template")
    if declared is None:
        return {}
    origin = "chat_template of tokenizer_config.json"
    if isinstance(declared, str):
        return {"default": TemplateSource(declared, origin)}
    try:
        pairs = declared.items() if isinstance(declared, dict) else [(t["name"], t["template"]) for t in declared]
        return {str(name): TemplateSource(str(text), f"{origin} ({name})") for name, text in pairs}
    except (TypeError, KeyError) as error:
        raise TokenizerError(f"{origin} must be text or a list of named templates") from error


def _decoded(file: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file} is not UTF-8") from error


def _normalized(message: Message) -> dict[str, Any]:
    """A copy without null fields, and with the reasoning under the keys that templates read."""
    if not isinstance(message, Mapping):
        raise ChatTemplateError("every message must be an object")
    chat = {key: value for key, value in message.items() if value is not None}
    reasoning = next((chat[name] for name in _REASONING if name in chat), None)
    if reasoning is None:
        return chat
    return {"thinking": reasoning} | chat | {"reasoning_content": reasoning}


def _with_text_arguments(call: Any) -> Any:
    """A copy of a call whose arguments are JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str | None):
        return call
    try:
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
    except RecursionError as error:
        raise ChatTemplateError("the arguments of a call nest too deeply") from error
    return {**call, "function": {**function, "arguments": arguments}}


def _with_object_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """``message`` with text arguments wrapped in an object, for templates that list them by name."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(text := function.get("arguments"), str):
            call = {**call, "function": {**function, "arguments": {"arguments": text}}}
        calls.append(call)
    return {**message, "tool_calls": calls} if calls else message


def _mark_final(chat: list[dict[str, Any]], source: str) -> str:
    """Append the marker to the last message's text; returns that text."""
    final = chat[-1]
    content = final.get("content")
    if content is None or "content" not in source:
        raise ChatTemplateError(
            "continue_final_message needs content in the last message, and a chat template that shows it"
        )
    if isinstance(content, str):
        final["content"] = content + _CONTINUE_MARKER
        return content
    parts = [dict(part) for part in content]
    text_parts = [part for part in parts if "text" in part]
    if not text_parts:
        raise ChatTemplateError("continue_final_message needs text in the last message")
    text = str(text_parts[-1]["text"])
    text_parts[-1]["text"] = text + _CONTINUE_MARKER
    final["content"] = parts
    return text


def _cut_at_mark(rendered: str, continued: str) -> str:
    """The prompt up to the end of the message that is continued."""
    at = rendered.rfind(_CONTINUE_MARKER.strip())
    if at < 0 or continued.strip() not in rendered:
        raise ChatTemplateError("continue_final_message cannot be used: the chat template changes the last message")
    if rendered.startswith(_CONTINUE_MARKER, at):
        return rendered[:at]
    return rendered[:at].rstrip()


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


def _environment(now: Callable[[], datetime]) -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.add_filter("tojson", _tojson)
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: now().strftime(form),
        "dict": _NewDict(),
        "namespace": _Namespace,
    }
    return environment


class _Generation(Extension):
    """``{% generation %}`` … ``{% endgeneration %}`` marks assistant text for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """jinja2's ``namespace`` without names that begin with an underscore, which could reach Python's attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace must not have the name {name!r}")


class _NewDict:
    """``dict`` without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    if (indent if isinstance(indent, int) else len(indent or "")) > 16:
        raise SecurityError("tojson must not indent by more than 16")
    text_size(x)
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
