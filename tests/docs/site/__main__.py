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
from pathlib import Path

import click

from tests.docs.documents import ROOT
from tests.docs.site.built import looked_at
from tests.docs.site.stage import Stage

STAGED = ROOT / "build" / "site-docs"
SITE = ROOT / "site"


@click.command(help=__doc__)
@click.option("--run/--no-run", default=True, help="Run the programs and commands of the pages (run).")
def main(run: bool) -> None:
    wrong = built() + checked()
    for line in wrong:
        click.echo(f"PROBLEM {line}")
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
    Stage(STAGED).fill({})
    shutil.rmtree(SITE, ignore_errors=True)
    done = subprocess.run(
        [zensical(), "build", "--strict", "--clean"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        click.echo(done.stdout + done.stderr)
        return [f"zensical ended with {done.returncode}"]
    click.echo(f"built {SITE.relative_to(ROOT)}/ in {time.monotonic() - begun:.0f} s")
    return []


def checked() -> list[str]:
    """Read the site; returns what is wrong with it."""
    found = looked_at(SITE)
    click.echo(
        f"{found.pages:,} pages, {found.inner:,} links and files in the site, {found.outer:,} links to others: "
        f"{len(found.wrong)} broken"
    )
    return found.wrong


if __name__ == "__main__":
    main()
