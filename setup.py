"""Puts the bundled model, checkpoints/tiny, into what is built; pyproject.toml declares everything else.

Declared there, it would have to be in a package, with the scripts that train it. And native kernels, if the variable
RINGLINE_KERNELS names their library: the wheel is then for its processors alone. `make wheels` sets it; without it, an
engine compiles them at its first start.
"""

import os
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

MODEL = Path("checkpoints", "tiny")
KERNELS = os.environ.get("RINGLINE_KERNELS")


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
            if KERNELS:
                self.copy_file(KERNELS, str(Path(self.build_lib, "engine_core", "kernels")))

    def get_source_files(self) -> list[str]:
        """What a source distribution takes."""
        return [*super().get_source_files(), *model_files()]


class WithKernels(Distribution):
    """Of one kind of processor, if there is a library."""

    def has_ext_modules(self) -> bool:
        return bool(KERNELS)


class WheelForEveryPython(bdist_wheel):
    """As ctypes loads the kernels."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=WithKernels, cmdclass={"build_py": BuildWithModel, "bdist_wheel": WheelForEveryPython})
