"""A request's functions: in ``tools``, in namespaces, and in ``additional_tools`` items.

A namespace holds one server's functions, as Codex sends them. The ring and the model know a single name for each
function; calls go back to the client with namespace and name separate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.gateway.http.api_error import ApiError, invalid, shown

_PARTS = ("description", "parameters", "strict")
_Reference = tuple[str | None, str]
"""The namespace (None: any) and the name."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call."""

    name: str
    namespace: str | None
    definition: Mapping[str, Any]
    """For the ring, without its name."""

    @property
    def ring_name(self) -> str:
        """The name that the model knows."""
        return ring_name(self.name, self.namespace)

    @property
    def ring_tool(self) -> dict[str, Any]:
        """The tool in the ring's form."""
        return {"name": self.ring_name, **self.definition}

    @property
    def references(self) -> set[_Reference]:
        """All ways to name it in ``tool_choice``."""
        return {(space, name) for space in (None, self.namespace) for name in (self.name, self.ring_name)}


def ring_name(name: str, namespace: str | None) -> str:
    """A function's name with its namespace: ``mcp__pets__feed``."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def functions_of(groups: Iterable[tuple[str, Iterable[Any] | None]]) -> list[Function]:
    """The functions of tool lists, each with its path; a repeated name replaces the earlier function."""
    found: dict[str, Function] = {}
    for path, tools in groups:
        for number, tool in enumerate(tools or ()):
            for function in _functions(tool, f"{path}[{number}]", None, ""):
                found[function.ring_name] = function
    return list(found.values())


def _functions(tool: Any, path: str, namespace: str | None, about: str) -> Iterator[Function]:
    """A tool's functions; none for built-in tools, which clients offer unasked."""
    if not isinstance(tool, dict):
        raise invalid(path, "expected a tool: an object with a type")
    if tool.get("type") == "function":
        name, definition = tool.get("name"), {key: tool[key] for key in _PARTS if tool.get(key) is not None}
        if not isinstance(name, str):
            raise invalid(f"{path}.name", "missing: expected the name of a function")
        if about and isinstance(own := definition.get("description", ""), str):
            definition["description"] = f"{about}\n\n{own}".rstrip()
        yield Function(name, namespace, definition)
    elif tool.get("type") == "namespace" and namespace is None:
        name, tools, about = tool.get("name"), tool.get("tools"), tool.get("description") or ""
        if not isinstance(name, str) or not name or not isinstance(tools, list) or not isinstance(about, str):
            raise invalid(path, "a namespace needs a name, and a list of functions as tools")
        for number, inner in enumerate(tools):
            for function in _functions(inner, f"{path}.tools[{number}]", name, about):
                yield function
                about = ""  # only in its first function


def tool_options(
    functions: list[Function], given: str | dict[str, Any] | None, parallel: bool | None
) -> dict[str, Any]:
    """The ring's options for ``functions`` and the choice among them."""
    choice: Any = "auto" if given is None else given
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            allowed = choice.get("tools")
            if not isinstance(allowed, list):
                raise invalid("tool_choice.tools", "missing: expected a list of tools")
            functions = _allowed(functions, [tool for tool in allowed if isinstance(tool, dict)])
            choice = choice.get("mode") or "auto"
        elif choice.get("type") == "function":
            choice = _chosen(functions, choice)
        else:
            problem = f"{shown(choice.get('type'))}: expected function or allowed_tools"
            raise invalid("tool_choice.type", f"not supported: {problem}", code="unsupported_parameter")
    if not functions:
        if choice not in ("auto", "none"):
            raise invalid("tool_choice", "there are no functions to choose: give some in tools, or leave it out")
        return {"parse": {"tool_calls": "none"}}
    options: dict[str, Any] = {"tools": [function.ring_tool for function in functions], "tool_choice": choice}
    options["parse"] = {"tool_calls": "none"} if choice == "none" else {}
    if choice != "none" and parallel is False:
        options["parallel_tool_calls"] = False
    return options


def _allowed(functions: Iterable[Function], tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    """Functions named by ``tools``, or by namespace."""
    spaces = {name for tool in tools if tool.get("type") == "namespace" and isinstance(name := tool.get("name"), str)}
    named = set(filter(None, (_reference(tool) for tool in tools if tool.get("type") != "namespace")))
    return [function for function in functions if function.namespace in spaces or function.references & named]


def _chosen(functions: list[Function], choice: dict[str, Any]) -> dict[str, Any]:
    reference = _reference(choice)
    meant = [function for function in functions if reference in function.references]
    exact = [function for function in meant if function.ring_name == choice.get("name")]
    if len(exact or meant) > 1:
        raise _ambiguous(choice, meant)
    return {"type": "function", "name": (exact or meant)[0].ring_name} if meant else choice


def _ambiguous(choice: dict[str, Any], meant: list[Function]) -> ApiError:
    names = ", ".join(shown(function.ring_name) for function in meant[:8])
    return invalid("tool_choice.name", f"{shown(choice.get('name'))} is in several namespaces: expected one of {names}")


def _reference(tool: Mapping[str, Any]) -> _Reference | None:
    space, name = tool.get("namespace"), tool.get("name")
    return (space, name) if isinstance(name, str) and isinstance(space, str | None) else None
