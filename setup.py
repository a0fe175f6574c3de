"""Builds the native kernels with the server's distribution. All else about it is in pyproject.toml.

Without a compiler the distribution is installed without them, and the engine computes with torch.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("engine_core/kernels")


def load_builder() -> ModuleType:
    """The module that builds: by its path, because its package is not installed yet."""
    spec = importlib.util.spec_from_file_location("ringline_kernels_build", ROOT / PACKAGE / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildKernels(Command):
    """Compiles the library: beside its sources for an editable install, else into the wheel."""

    description = "compile the native kernels"
    user_options = ()
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        builder = load_builder()
        try:
            builder.build((ROOT if self.editable_mode else Path(self.build_lib)) / PACKAGE)
        except builder.BuildError as error:
            print(f"warning: the native kernels are not built: {error}", file=sys.stderr)

    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / PACKAGE / "cpu").iterdir())]

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib) / PACKAGE / load_builder().LIBRARY)]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildWithKernels(build):
    """The usual build, and the kernels."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_kernels", None)]


class PlatformWheel(bdist_wheel):
    """A wheel for this kind of machine and any version of Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build": BuildWithKernels, "build_kernels": BuildKernels, "bdist_wheel": PlatformWheel})
