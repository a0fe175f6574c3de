"""Error messages for weights in unsupported formats, with remedies: from file names and first bytes alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_TORCH_NAMES = "pytorch_model.bin, or pytorch_model.bin.index.json with the files it names"
_PICKLE = (
    f"a PyTorch file, of which transformers' are read (a directory with {_TORCH_NAMES}): choose a revision with "
    "safetensors, or load the model in transformers and call save_pretrained"
)
_SAFETENSORS = "choose a checkpoint with model*.safetensors"
_BY_SUFFIX = {
    ".bin": _PICKLE,
    ".pt": _PICKLE,
    ".pth": _PICKLE,
    ".ckpt": _PICKLE,
    ".onnx": f"an ONNX file, which is not read: {_SAFETENSORS}",
    ".msgpack": f"a Flax file, which is not read: {_SAFETENSORS}",
    ".h5": f"a TensorFlow file, which is not read: {_SAFETENSORS}",
    ".tflite": f"a TensorFlow file, which is not read: {_SAFETENSORS}",
}
_CONSOLIDATED = "in its publisher's own format, which is not read: choose the checkpoint in transformers' format"
_NO_WEIGHTS = ("optimizer", "scheduler", "training_args", "rng_state")
"""Prefixes of files that training leaves beside weights."""

_METHODS = {
    "aqlm": "AQLM",
    "auto-round": "AutoRound",
    "awq": "AWQ",
    "bitnet": "BitNet",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "exl2": "EXL2",
    "exl3": "EXL3",
    "fbgemm_fp8": "FP8 (FBGEMM)",
    "fp8": "FP8",
    "gguf": "GGUF",
    "gptq": "GPTQ",
    "hqq": "HQQ",
    "modelopt": "ModelOpt",
    "mxfp4": "MXFP4",
    "quanto": "Quanto",
    "torchao": "torchao",
}

QUANTIZATION_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files in which AutoGPTQ, AutoAWQ and ModelOpt describe quantization if config.json does not, and their methods."""


def is_lfs_pointer(file: Path) -> bool:
    """Whether a file is Git's placeholder for a large file that was not downloaded."""
    try:
        if not file.is_file():  # opening a pipe may block forever
            return False
        with file.open("rb") as opened:
            return opened.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return False


def lfs_problem(file: Path) -> str:
    """The error for an ``is_lfs_pointer`` file."""
    return f"{file} is a Git LFS pointer, not the file itself: run `git lfs pull` in its directory"


def file_problem(file: Path) -> str:
    """The error for a file given as a model."""
    if file.suffix != ".safetensors" and (known := _format_of(file.name)) is not None:
        return f"{file} is {known}"
    return f"{file} is a file: give the directory that has the checkpoint's config.json, or a GGUF file"


def missing_weights(directory: Path, load_format: str = "auto") -> str:
    """The error for a directory without weights that ``load_format`` allows: what it has instead."""
    names = sorted(entry.name for entry in directory.iterdir())
    if load_format == "pt":
        return f"{directory} has no {_TORCH_NAMES}, which --load-format pt reads: leave that out"
    if load_format == "safetensors" and any(name.startswith("pytorch_model.bin") for name in names):
        return f"{directory} has PyTorch's files, which --load-format safetensors does not read: leave that out"
    for name in names:
        if (known := _format_of(name)) is not None:
            return f"{directory} has no model.safetensors; its {name} is {known}"
    if "adapter_model.safetensors" in names:
        return f"{directory} has no model.safetensors: {_ADAPTER % directory}"
    return (
        f"{directory} has neither model.safetensors nor model.safetensors.index.json, nor PyTorch's files of such "
        "names: choose a checkpoint, or a revision, with safetensors"
    )


def missing_config(directory: Path) -> str:
    """The error for a directory without config.json, or that is not there: what it is instead."""
    if not directory.is_dir():
        return f"{directory} is missing: download all folders of the checkpoint"
    names = sorted(entry.name for entry in directory.iterdir())
    if "adapter_config.json" in names:
        return f"{directory} has no config.json: {_ADAPTER % directory}"
    if "model_index.json" in names:
        return f"{directory} has no config.json: it is a pipeline of diffusers, not a language model"
    for name in names:
        if (known := _format_of(name)) is not None:
            return f"{directory} has no config.json; its {name} is {known}"
    return f"{directory} has no config.json: give the directory of a checkpoint in transformers' format, or a GGUF file"


_ADAPTER = "it is an adapter (PEFT): give the directory of its base model, and --enable-lora --lora-modules name=%s"


def quantization_method(fields: Mapping[str, Any]) -> tuple[str | None, str] | None:
    """The quantization method in config.json: its identifier, if it has one, and its name.

    None if weights are not quantized.
    """
    # MLX writes "quantization", and again as a "quantization_config" without a method.
    quantized = fields.get("quantization_config") or fields.get("quantization")
    if not quantized:
        return None
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    if isinstance(method, str):
        return method.lower(), method_name(method)
    is_mlx = isinstance(quantized, dict) and {"group_size", "bits"} <= quantized.keys()
    return None, "MLX" if is_mlx else "a method that config.json does not name"


def method_name(method: str) -> str:
    """The usual name of the quantization method with that identifier."""
    return _METHODS.get(method.lower(), method)


def _format_of(name: str) -> str | None:
    """Description of a weight file and the remedy, from its name; None for other files and supported ones."""
    if name == "pytorch_model.bin":
        return None
    if name.startswith("consolidated") and name.endswith((".pth", ".safetensors")):
        return _CONSOLIDATED
    return None if name.startswith(_NO_WEIGHTS) else _BY_SUFFIX.get(Path(name).suffix.lower())
