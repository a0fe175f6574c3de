"""Checkpoints on the hub: their names, and their download by huggingface_hub, which finds its token, cache and offline
mode itself.

Neither torch nor the hub's library is imported before a download.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.files import SUFFIX, model_name, models_among, parts_of, several

_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_SAFETENSORS = ("model*.safetensors",)
_TORCH = ("pytorch_model.bin", "pytorch_model-?????-of-?????.bin")
_OTHER_COPIES = ("original/*", "consolidated*", "onnx/*")
_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*(/[\w.-]+)?)(:(?P<type>[\w.-]+))?")
_PATIENCE = 10.0
"""Seconds in which the hub says that it has a model. Its library waits as long for each of the hub's addresses."""
_ID_WITH_FILE = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)/(?P<file>([\w.-]+/)*[\w.-]+\.gguf)")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository, and which of its GGUF models, if named."""

    repository: str
    gguf: str | None = None
    """A file's path, or the weight type at the end of its name."""

    @classmethod
    def parse(cls, model: str) -> HubModel | None:
        """Parse ``org/name``, ``org/name:Q4_K_M`` or ``org/name/file.gguf``; None if it is no hub id."""
        if (named := _ID_WITH_FILE.fullmatch(model)) is not None:
            return cls(named["repository"], named["file"])
        if (named := _ID.fullmatch(model)) is None or named["repository"].endswith(SUFFIX):
            return None
        return cls(named["repository"], named["type"])

    @property
    def patterns(self) -> tuple[str, ...]:
        """``fnmatch`` patterns for all files of the GGUF model."""
        if self.gguf is None:
            return ()
        if self.gguf.endswith(SUFFIX):
            return (parts_of(self.gguf),)
        either = "".join(f"[{c.lower()}{c.upper()}]" if c.isalpha() else c for c in self.gguf)
        ends = (SUFFIX, f"-?????-of-?????{SUFFIX}")
        return tuple(f"{start}{either}{end}" for start in ("", "*[-._/]") for end in ends)

    def among(self, names: Iterable[str]) -> list[str]:
        """The (first) files of the models that match."""
        return models_among(name for name in names if any(fnmatchcase(name, pattern) for pattern in self.patterns))


def download(
    model: HubModel, revision: str | None, download_dir: str | None, weights: bool, load_format: str = "auto"
) -> Path:
    """Download a model, or find it in the cache; return its directory, or its (first) GGUF file.

    PyTorch's files are downloaded if there is nothing else, or if ``load_format`` is pt.

    Raises ``CheckpointError`` when it does not exist, is not accessible, or cannot be reached.
    """
    if model.gguf is None:
        wanted = () if not weights else _TORCH if load_format == "pt" else _SAFETENSORS
        directory = _snapshot(model, revision, download_dir, [*_SMALL_FILES, *wanted])
        other = any(directory.glob("*.safetensors")) or (not weights and (directory / "config.json").exists())
        if other or load_format == "pt":
            return directory
        if not (there := _ggufs(model, revision, directory)):
            return _snapshot(model, revision, download_dir, _TORCH) if weights and load_format == "auto" else directory
        if len(there) > 1:
            raise CheckpointError(f"{model.repository} has {_choice(model, there)}")
        model = HubModel(model.repository, there[0])
    directory = _snapshot(model, revision, download_dir, model.patterns)
    chosen = model.among(_files_below(directory))
    if len(chosen) == 1:
        return directory / chosen[0]
    if chosen:
        raise CheckpointError(f"{model.repository}: {model.gguf} may be any of {_choice(model, chosen)}")
    there = _ggufs(model, revision, directory)
    has = f"it has {_choice(model, there)}" if there else "it has no GGUF file"
    raise CheckpointError(f"{model.repository} has no file of {model.gguf}: {has}")


def check_available(model: HubModel, revision: str | None, download_dir: str | None) -> None:
    """Raise ``CheckpointError`` if nothing of ``model`` is in the cache, and the hub cannot be reached or has no such
    repository.
    """
    try:
        from huggingface_hub import constants
    except ModuleNotFoundError:  # an installation without the extra ``engine``, which is told later
        return
    cache = Path(download_dir or constants.HF_HUB_CACHE).expanduser()
    snapshots = cache / "--".join(["models", *model.repository.split("/")]) / "snapshots"
    if snapshots.is_dir():
        return
    problems: list[CheckpointError] = []
    asking = threading.Thread(target=_ask, args=(model, revision, download_dir, problems), name="ask hub", daemon=True)
    if not constants.HF_HUB_OFFLINE:
        asking.start()
        asking.join(_PATIENCE)
    if constants.HF_HUB_OFFLINE or asking.is_alive():
        raise CheckpointError(_not_cached(model, revision, _at(model, revision), download_dir))
    if problems:
        raise problems[0]


def _ask(model: HubModel, revision: str | None, download_dir: str | None, problems: list[CheckpointError]) -> None:
    """Ask the hub for a model; add what is wrong to ``problems``."""
    from huggingface_hub import HfApi, errors

    try:
        with _as_checkpoint_errors(model, revision, download_dir):
            try:
                HfApi().model_info(model.repository, revision=revision, timeout=_PATIENCE)
            except errors.HfHubHTTPError as error:
                if isinstance(error, (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)):
                    raise  # of other answers the download may make more: not every mirror has the whole API
            except Exception as error:  # the errors of the hub library's HTTP client differ by release
                raise errors.LocalEntryNotFoundError(str(error)) from error
    except CheckpointError as error:
        problems.append(error)


def _choice(model: HubModel, models: Sequence[str]) -> str:
    by_type = re.split(r"[-.]", model_name(Path(models[0])))[-1]
    return f"{several(models)}: name one, as in {model.repository}:{by_type} or {model.repository}/{models[0]}"


def _ggufs(model: HubModel, revision: str | None, directory: Path) -> list[str]:
    """The repository's GGUF models; without a network, those in the cache."""
    from huggingface_hub import HfApi

    try:
        return models_among(HfApi().list_repo_files(model.repository, revision=revision))
    except Exception:  # the errors of the hub library's HTTP client differ by release
        return models_among(_files_below(directory))


def _files_below(directory: Path) -> Iterable[str]:
    return (path.relative_to(directory).as_posix() for path in directory.rglob("*"))


def _snapshot(model: HubModel, revision: str | None, download_dir: str | None, patterns: Sequence[str]) -> Path:
    """The directory of a repository's snapshot with the files that match ``patterns``."""
    import huggingface_hub

    with _as_checkpoint_errors(model, revision, download_dir):
        return Path(
            huggingface_hub.snapshot_download(
                model.repository,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=list(patterns),
                ignore_patterns=list(_OTHER_COPIES),
            )
        )


def _at(model: HubModel, revision: str | None) -> str:
    return model.repository if revision is None else f"{model.repository} at revision {revision}"


@contextmanager
def _as_checkpoint_errors(model: HubModel, revision: str | None, download_dir: str | None) -> Iterator[None]:
    """Raise errors of the hub's library as ``CheckpointError`` with remedies."""
    from huggingface_hub import errors

    name, at = model.repository, _at(model, revision)
    try:
        yield
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{at} is gated: ask for access on its page, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{name} is neither a directory nor a file, and the hub has no such repository, or it is private: check "
            "the name, or log in with `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{name} has no revision {revision}: give one of its branches, tags or commits"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise CheckpointError(_not_cached(model, revision, at, download_dir)) from error
    except Exception as error:  # the errors of the hub library's HTTP client differ by release
        raise CheckpointError(f"{at} cannot be downloaded: {' '.join(str(error).split())}") from error


def _not_cached(model: HubModel, revision: str | None, at: str, download_dir: str | None) -> str:
    """The error when nothing can be downloaded, with remedies."""
    from huggingface_hub import constants

    cache = download_dir or constants.HF_HUB_CACHE
    if constants.HF_HUB_OFFLINE:
        why, remedy = "HF_HUB_OFFLINE is set, so nothing is downloaded", "unset it"
    else:
        why = f"the hub cannot be reached at {constants.ENDPOINT}"
        remedy = "check the network, and HF_ENDPOINT if it is set"
    wanted = model.gguf and (f'"{parts_of(model.gguf)}"' if model.gguf.endswith(SUFFIX) else f'"*{model.gguf}*"')
    given = {"--include": wanted, "--revision": revision, "--cache-dir": download_dir}
    options = "".join(f" {flag} {value}" for flag, value in given.items() if value)
    return (
        f"{at} is neither a directory nor a file, and not in the cache {cache}; {why}: {remedy}, run "
        f"`hf download {model.repository}{options}` where there is a network, or give a directory"
    )
