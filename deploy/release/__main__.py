"""``make release VERSION=0.2.0``: everything of a release but what leaves this machine, which it prints at its end.

It sets the version of every distribution, puts what is new under it in the changelog, takes the protos as the contract
that later ones must not break, makes the wheels, the package for npm, a bill of materials for each distribution and
image, and SHA256SUMS, all in dist/. Before it changes anything it refuses a tree with changes, a version that is there
or does not grow, and a changelog that says nothing. If a step fails, the files that it changed are as they were; dist/
is emptied all the same.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from deploy.release import bills
from deploy.release.versions import ReleaseError, changes, check, shown

ROOT = Path(__file__).resolve().parents[2]
TYPESCRIPT = "clients/typescript"
BASELINE = "protos/baseline.binpb"
SUMS = "SHA256SUMS"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command."""
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=f"{summary} {rest}")
    parser.add_argument("version", help="three numbers, above those of the last release")
    parser.add_argument("--dry-run", action="store_true", help="check everything, and say what would change")
    given = parser.parse_args(arguments)
    try:
        release(given.version, root, dry_run=given.dry_run)
    except ReleaseError as error:
        print(f"No release: {error}", file=sys.stderr)
        return 1
    return 0


def release(version: str, root: Path, *, dry_run: bool) -> None:
    """Make a release, or say what it would be. Raises ``ReleaseError``."""
    if dirty := _git(root, "status", "--porcelain").splitlines():
        raise ReleaseError(f"there are changes that git has not got, such as {dirty[0][3:]}: commit them first")
    check(root, version, _git(root, "tag", "--list").split())
    texts = changes(root, version, f"{datetime.now(UTC):%Y-%m-%d}")
    if dry_run:
        print(*shown(root, texts), sep="\n")
        print(f"{BASELINE}: the protos as they are\n\nNothing was changed. Afterwards, to publish it:\n")
        print(*_commands(version), sep="\n")
        return
    try:
        _run(root, "make", "proto-baseline")  # first: changed versions would have make install everything anew
        for path, text in texts.items():
            (root / path).write_text(text)
        made = _distributions(root, version)
    except BaseException:
        _git(root, "restore", "--", *texts, BASELINE)
        raise
    print(f"\n{len(made)} files in dist/, with {SUMS}. To publish them:\n")
    print(*_commands(version), sep="\n")


def _distributions(root: Path, version: str) -> list[Path]:
    """Fill dist/. Raises ``ReleaseError``."""
    dist = root / "dist"
    for old in [path for path in dist.glob("*") if path.is_file()]:
        old.unlink()
    _run(root, "make", "wheels")
    if (root / TYPESCRIPT).is_dir():
        for command in (("ci", "--no-audit", "--no-fund"), ("run", "build"), ("pack", f"--pack-destination={dist}")):
            _run(root / TYPESCRIPT, "npm", *command)
    with tempfile.TemporaryDirectory(prefix="ringline-release-") as work:
        bills.write(root, dist, version, Path(work), lambda step: print(step, flush=True))
    made = sorted(path for path in dist.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (dist / SUMS).write_text("".join(sums))
    return made


def _commands(version: str) -> list[str]:
    """What publishes a release."""
    images = [
        f"docker build --target {name} -t ringline-{name}:{version}"
        + (" --build-arg TORCH_INDEX_URL=…" if name == "engine" else "")
        + " ."
        for name in bills.IMAGES
    ]
    images.append(f"docker build --target engine -t ringline-engine-cuda:{version} --build-arg DEVICE=cuda .")
    return [
        f'git commit -a -m "Release {version}"',
        f'git tag -a v{version} -m "Ringline {version}"',
        *images,
        f"git push origin HEAD v{version}",
    ]


def _run(folder: Path, *command: str) -> None:
    """Run what says itself what it does. Raises ``ReleaseError``."""
    try:
        failed = subprocess.run(command, cwd=folder, check=False).returncode != 0
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} is not installed: it makes a part of the release") from None
    if failed:
        raise ReleaseError(f"`{' '.join(command[:2])}` failed, as it says above")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"`git {arguments[0]}` failed: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
