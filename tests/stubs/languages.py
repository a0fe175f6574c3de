"""Languages whose stubs are made of the protos, by the compilers that Debian has: what each needs, and how it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.programs import run

PROGRAMS = Path(__file__).resolve().parent
_TIMEOUT = 300
_GO_SOURCES = Path("/usr/share/gocode")
_JARS = Path("/usr/share/java")

PACKAGES = {
    "protobuf-compiler": "/usr/bin/protoc",
    "golang-go": "/usr/bin/go",
    "protoc-gen-go": "/usr/bin/protoc-gen-go",
    "protoc-gen-go-grpc": "/usr/bin/protoc-gen-go-grpc",
    "golang-google-protobuf-dev": f"{_GO_SOURCES}/src/google.golang.org/protobuf",
    "golang-github-golang-protobuf-1-5-dev": f"{_GO_SOURCES}/src/github.com/golang/protobuf",
    "golang-google-grpc-dev": f"{_GO_SOURCES}/src/google.golang.org/grpc",
    "golang-google-genproto-dev": f"{_GO_SOURCES}/src/google.golang.org/genproto",
    "default-jdk-headless": "/usr/bin/javac",
    "protobuf-compiler-grpc-java-plugin": "/usr/bin/grpc_java_plugin",
    "libprotobuf-java": f"{_JARS}/protobuf.jar",
    "libgrpc-java": f"{_JARS}/grpc-netty.jar",
    "libgoogle-common-protos-java": f"{_JARS}/proto-google-common-protos.jar",
    "libgeronimo-annotation-1.3-spec-java": f"{_JARS}/geronimo-annotation-1.3-spec.jar",
    "libguava-java": f"{_JARS}/guava.jar",
    "libnetty-java": f"{_JARS}/netty-all.jar",
    "libperfmark-java": f"{_JARS}/perfmark-api.jar",
}
"""Of Debian 12, each with a file that it brings."""

_JAVA_LIBRARIES = (
    *(
        "protobuf",
        "proto-google-common-protos",
        "geronimo-annotation-1.3-spec",
        "guava",
        "failureaccess",
        "perfmark-api",
    ),
    *("grpc-api", "grpc-context", "grpc-core", "grpc-netty", "grpc-protobuf", "grpc-protobuf-lite", "grpc-stub"),
    *(f"netty-{part}" for part in ("buffer", "codec", "codec-http", "codec-http2", "codec-socks", "common", "handler")),
    *(f"netty-{part}" for part in ("handler-proxy", "resolver", "transport")),
)


def missing_packages() -> list[str]:
    """Those that are not installed."""
    return [package for package, file in PACKAGES.items() if not Path(file).exists()]


@dataclass(frozen=True)
class Stubs:
    """Of one contract, below a folder."""

    protos: Path
    folder: Path

    def go(self, name: str = "smoke") -> list[str]:
        """Make and compile Go's; returns the command of a program that uses them."""
        sources = self.folder / "go" / "src"
        self._protoc("--go_out", sources)
        self._protoc("--go-grpc_out", sources)
        environment = {
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "GOPATH": f"{sources.parent}:{_GO_SOURCES}",
            "GOCACHE": str(self.folder.parent / "go-cache"),
        }
        _run("go", "build", "ringline.dev/gen/...", environment=environment)
        program = self.folder / name
        _run("go", "build", "-o", program, PROGRAMS / f"{name}.go", environment=environment)
        return [str(program)]

    def java(self) -> list[str]:
        """Make and compile Java's; returns the command of the program that uses them."""
        sources, classes = self.folder / "java", self.folder / "classes"
        self._protoc("--java_out", sources)
        self._protoc("--grpc-java_out", sources, "--plugin=protoc-gen-grpc-java=/usr/bin/grpc_java_plugin")
        path = ":".join(str(_JARS / f"{name}.jar") for name in _JAVA_LIBRARIES)
        files = [*sources.rglob("*.java"), PROGRAMS / "Smoke.java"]
        _run("javac", "-nowarn", "-d", classes, "-cp", path, *files)
        return ["java", "-cp", f"{classes}:{path}", "Smoke"]

    def csharp(self) -> list[str]:
        """Make C#'s, of messages alone: Debian has neither a compiler nor a plugin for services."""
        self._protoc("--csharp_out", self.folder / "csharp")
        made = list((self.folder / "csharp").rglob("*.cs"))
        assert len(made) == len(self._files()), made
        return []

    def _protoc(self, output: str, out: Path, *options: str) -> None:
        out.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{self.protos}", f"-I{self.protos / 'vendor'}"]
        _run("protoc", *includes, *options, f"{output}={out}", *self._files())

    def _files(self) -> list[Path]:
        return sorted((self.protos / "ringline").rglob("*.proto"))


def answer(command: Sequence[str], *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints; raises ``StubsError`` if it fails. ``arguments``: a processor's address, for most."""
    return _run(*command, *arguments, environment=environment)


def _run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Its output; raises ``StubsError`` with what it said."""
    done = run(*command, env=environment, timeout=_TIMEOUT)
    if done.returncode:
        raise StubsError(f"{' '.join(map(str, command[:3]))} …:\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stdout


class StubsError(Exception):
    """A compiler or a program failed; the text has what it said."""
