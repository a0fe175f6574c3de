"""How published chat templates fare: ``python -m tests.text_core.parsing.published_templates FOLDER``.

FOLDER holds templates, \\*.jinja, such as those of github.com/ggml-org/llama.cpp in models/templates and those of
github.com/vllm-project/vllm in examples. Each is rendered beside transformers; the formats of its calls and of its
reasoning are found; the calls that it shows are cut everywhere and read back, and must be what demanded calls are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from tests.text_core.parsing.call_checks import check_calls
from tests.text_core.parsing.rendering_checks import SPECIAL, Checked, check_prompts
from text_core.chat_templates import ChatTemplateError, ChatTemplates, TemplateSource
from text_core.parsing.formats import NONE


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
def main(folder: Path, only: str) -> None:
    paths = sorted(path for path in folder.rglob("*.jinja") if only in path.stem)
    with click.progressbar(paths, label="templates", file=sys.stderr) as progress:
        results = [check(path.stem, path.read_text()) for path in progress]
    for line in (*_table(results), *_summary(results)):
        click.echo(line)
    sys.exit(1 if not results or any(result.faults for result in results) else 0)


def _table(results: list[Checked]) -> Iterator[str]:
    yield "| template | calls | reasoning | tools | prompts | read | demanded | remarks |"
    yield "|" + " --- |" * 8
    for result in results:
        remarks = "; ".join([*result.notes, *(["FAULTY"] if result.faults else [])])
        counts = (result.prompts, result.read, result.demanded)
        row = (result.name, result.calls, result.reasoning, result.tools, *counts, remarks)
        yield f"| {' | '.join(map(str, row))} |"
    for result in results:
        yield from (f"FAULT {result.name}: {fault}" for fault in result.faults)


def _summary(results: list[Checked]) -> Iterator[str]:
    formats = Counter(result.calls for result in results if result.calls != NONE)
    yield f"{len(results):7} templates, {formats.total()} with calls in {len(formats)} formats"
    yield f"{sum(result.prompts for result in results):7} prompts as transformers renders them"
    yield f"{sum(result.read for result in results):7} answers with calls that are read back, cut at every byte"
    yield f"{sum(result.demanded for result in results):7} of them as demanded calls are"
    yield f"{sum(bool(result.faults) for result in results):7} templates with faults"


if __name__ == "__main__":
    main()
