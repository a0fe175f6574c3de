"""How published chat templates fare: ``python -m tests.text_core.parsing.published_templates FOLDER``.

FOLDER holds templates, \\*.jinja, such as those of github.com/ggml-org/llama.cpp in models/templates and those of
github.com/vllm-project/vllm in examples. Each is rendered beside transformers; the formats of its calls and of its
reasoning are found; the calls that it shows are cut everywhere and read back, and must be what demanded calls are.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

from tests.docs.documents import ROOT, Generated
from tests.text_core.parsing.call_checks import check_calls
from tests.text_core.parsing.rendering_checks import SPECIAL, Checked, check_prompts
from text_core.chat_templates import ChatTemplateError, ChatTemplates, TemplateSource
from text_core.parsing.formats import NONE

PAGE = ROOT / "docs" / "reference" / "tools-and-reasoning.md"
BEGIN = "<!-- By `python -m tests.text_core.parsing.published_templates FOLDER --write`. -->\n"
END = "<!-- End of what came of them. -->"
_COLUMNS = ("calls", "reasoning", "tools", "templates", "prompts", "read", "demanded", "remarks")


def check(name: str, text: str) -> Checked:
    """What comes of one template."""
    checked = Checked(name)
    try:
        templates = ChatTemplates({"default": TemplateSource(text)}, SPECIAL)
    except ChatTemplateError as error:
        checked.faults.append(str(error))
        return checked
    checked.calls, checked.reasoning = templates.formats(None, has_tools=False)
    check_prompts(checked, templates, text)
    if checked.calls != NONE:
        check_calls(checked, templates, text)
    return checked


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Only templates with this text in their names.")
@click.option("--write", is_flag=True, help="Write the table into docs/reference/tools-and-reasoning.md.")
def main(folder: Path, only: str, write: bool) -> None:
    names = {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.jinja"))}
    chosen = [(name, path) for name, path in names.items() if only in name]
    with click.progressbar(chosen, label="templates", file=sys.stderr) as progress:
        results = [check(name, path.read_text()) for name, path in progress]
    for line in (*_each(results), *_summary(results)):
        click.echo(line)
    if write:
        Generated(PAGE, BEGIN, END, lambda: "\n".join([*table(results), "", *_summary(results)]) + "\n").write()
    sys.exit(1 if not results or any(result.faults for result in results) else 0)


def _each(results: list[Checked]) -> Iterator[str]:
    for one in results:
        counts = f"{one.prompts} prompts, {one.read} answers read, {one.demanded} demanded"
        yield "; ".join([f"{one.name}: {one.calls}, {one.reasoning}, tools {one.tools}: {counts}", *one.notes])
        yield from (f"FAULT {one.name}: {fault}" for fault in one.faults)


def table(results: list[Checked]) -> Iterator[str]:
    """A row for all templates with the same formats."""
    alike: defaultdict[tuple[str, str, str], list[Checked]] = defaultdict(list)
    for one in results:
        alike[one.calls, one.reasoning, one.tools].append(one)
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|" + " --- |" * len(_COLUMNS)
    for formats, ones in sorted(alike.items(), key=lambda each: (each[0][0] == NONE, each)):
        counts = [sum(count) for count in zip(*((one.prompts, one.read, one.demanded) for one in ones), strict=True)]
        remarks = list(dict.fromkeys(note for one in ones for note in one.notes))
        remarks += ["**faults**"] if any(one.faults for one in ones) else []
        row = (*formats, ", ".join(one.name for one in ones), *counts, "; ".join(remarks))
        yield f"| {' | '.join(map(str, row))} |"


def _summary(results: list[Checked]) -> Iterator[str]:
    formats = {one.calls for one in results} - {NONE}
    faulty = sum(bool(one.faults) for one in results)
    yield f"{len(results)} templates, {sum(one.calls != NONE for one in results)} with calls in {len(formats)} formats;"
    yield f"{sum(one.prompts for one in results)} prompts as transformers renders them;"
    yield f"{sum(one.read for one in results)} answers with calls read back, cut at every byte;"
    yield f"{sum(one.demanded for one in results)} of them as demanded calls are; {faulty} templates with faults."


if __name__ == "__main__":
    main()
