"""``python -m tests.docs.site``: builds the site of the documents into site/, and reads it. Exits 1 on any problem.

zensical, which makes the pages, is strict: a warning ends it. Every link of the built pages has to lead somewhere, in
the site; links to other sites are only read. Then the blocks of code are counted, and the pages are walked through
whose blocks are to be run one after the other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import click

from tests.docs.documents import ROOT
from tests.docs.site import llms
from tests.docs.site.built import looked_at
from tests.docs.site.code import everything, fates
from tests.docs.site.stage import Stage
from tests.docs.site.walks import walks

STAGED = ROOT / "build" / "site-docs"
SITE = ROOT / "site"


@click.command(help=__doc__)
@click.option("--run/--no-run", default=True, help="Walk through the pages of docs/start/ and docs/tutorials/ (run).")
def main(run: bool) -> None:
    wrong = built() or checked()
    counted = fates(everything())
    told = ", ".join(f"{counted[name]} {name}" for name in ("run", "checked", "shown", "not run"))
    click.echo(f"{counted.total()} blocks of code: {told} (with the reason)")
    wrong += walks() if run else []
    for line in wrong:
        click.echo(f"PROBLEM {line}")
    click.echo(f"problems: {len(wrong)}")
    sys.exit(1 if wrong else 0)


def zensical() -> str:
    """The program: that of this environment, or another one on the PATH."""
    beside = Path(sys.executable).with_name("zensical")
    found = str(beside) if beside.exists() else shutil.which("zensical")
    if found is None:
        raise click.ClickException("zensical is not installed: `make docs` installs it, as the extra docs")
    return found


def built() -> list[str]:
    """Build the site; returns what is wrong with it."""
    begun = time.monotonic()
    Stage(STAGED).fill()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [zensical(), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        click.echo(done.stdout + done.stderr)
        return [f"zensical ended with {done.returncode}"]
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    named = llms.write(SITE, project)
    click.echo(f"built {SITE.relative_to(ROOT)}/ in {time.monotonic() - begun:.0f} s, with llms.txt of {named} pages")
    return []


def checked() -> list[str]:
    """Read the site; returns what is wrong with it."""
    found = looked_at(SITE)
    wrong = found.wrong + llms.broken(SITE)
    click.echo(
        f"{found.pages:,} pages, {found.inner:,} links and files in the site, {found.outer:,} links to others: "
        f"{len(wrong)} broken"
    )
    return wrong


if __name__ == "__main__":
    main()
