"""Puts the bundled model, checkpoints/tiny, into what is built; pyproject.toml declares everything else.

Declared there, it would have to be in a package, with the scripts that train it.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MODEL = Path("checkpoints", "tiny")


def model_files() -> list[str]:
    """What serves it: neither its scripts nor their corpus."""
    return [str(path) for pattern in ("*.json", "*.jinja", "*.safetensors") for path in sorted(MODEL.glob(pattern))]


class BuildWithModel(build_py):
    """In a wheel the model is ``services/checkpoints/tiny``; an editable installation has that of the repository."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            installed = Path(self.build_lib, "services", MODEL)
            self.mkpath(str(installed))
            for file in model_files():
                self.copy_file(file, str(installed))

    def get_source_files(self) -> list[str]:
        """What a source distribution takes."""
        return [*super().get_source_files(), *model_files()]


setup(cmdclass={"build_py": BuildWithModel})
