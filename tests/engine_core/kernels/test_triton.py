"""The kernels for GPUs, as far as a machine without one can check them: that they compute right under Triton's
interpreter, and that the compiler makes machine code of them that fits a GPU's shared memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
INTERPRETED = Path(__file__).parent / "interpreted"
SMALLEST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program may have on the smallest supported GPUs."""


@pytest.mark.long
@pytest.mark.parametrize("file", sorted(INTERPRETED.glob("test_*.py")), ids=lambda path: path.stem)
def test_interpreted(file: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", str(file)]
    result = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def compile_kernel(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: int) -> Any:
    """``kernel`` compiled for compute capability 9.0; types of pointers begin with *, and they are aligned."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


INTEGERS = ("num_seqs", "most_splits", "query_stride", "table_stride", "block_stride", "key_stride", "value_stride")


@pytest.mark.parametrize(("dtype", "head_dim"), [("bf16", 128), ("fp32", 256)])
def test_attention_compiles(dtype: str, head_dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from engine_core.attention.triton_paged import Tiles, tiles_of_chunks, tiles_of_single_rows
    from engine_core.kernels.triton import attention

    itemsize, group = {"bf16": 2, "fp32": 4}[dtype], 4
    numbers = dict.fromkeys(("query", "key", "value", "output", "cache"), f"*{dtype}")
    results = {"partial": "*fp32", "statistics": "*fp32", "scale": "fp32", "values_offset": "i64", "slots": "*i64"}
    tables = dict.fromkeys(("query_starts", "seq_lens", "block_tables"), "*i32")
    types = numbers | results | tables | dict.fromkeys(INTEGERS, "i32")
    constants = {"NUM_HEADS": 8 * group, "NUM_KV_HEADS": 8, "GROUP": group, "HEAD_DIM": head_dim, "DIMS": head_dim}
    constants |= {"BLOCK_SIZE": 16, "SEQS": 256, "SPLIT": 256, "IEEE": dtype == "fp32", "WIDE": False}

    def compiled(kernel: Any, tiles: Tiles | None = None, **others: int) -> Any:
        shape = {} if tiles is None else {"ROWS": tiles.rows, "KEYS": tiles.keys}
        options = {} if tiles is None else {"num_warps": tiles.warps, "num_stages": tiles.stages}
        known = constants | shape | others
        names = set(kernel.arg_names)
        result = compile_kernel(
            kernel,
            {name: types[name] for name in names & types.keys()},
            {name: known[name] for name in names & known.keys()},
            **options,
        )
        assert result.asm["cubin"]
        assert result.metadata.shared <= SMALLEST_SHARED_MEMORY
        return result

    compiled(attention.write_keys_and_values, WIDTH=8 * head_dim)
    compiled(attention.join_splits, ROWS=group)
    compiled(attention.attend_single_rows, tiles_of_single_rows(itemsize * head_dim, group))
    chunks = compiled(attention.attend_chunks, tiles_of_chunks(itemsize, head_dim, group))
    # On Hopper the products of narrow types are to be made by its tensor cores.
    assert ("wgmma" in chunks.asm["ptx"]) == (dtype == "bf16")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_layers_compile(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from engine_core.kernels.triton import linear, rows
    from engine_core.layers.gpu_linear import ProductTiles

    number, wide = f"*{dtype}", "*fp32"
    norm = {"x": number, "weight": number, "output": number, "x_stride": "i32"}
    rotation = {"heads": number, "weights": number, "cos": wide, "sin": wide, "stride": "i32"}
    product = dict.fromkeys(("x", "weight", "output"), number)
    product |= {"bias": number, "residual": number, "num_rows": "i32"}
    head = {"EPSILON": 1e-6, "NUM_HEADS": 40, "NUM_QUERY_HEADS": 32, "HALF": 64, "TOGETHER": 8, "WIDTH": 64}
    compile_kernel(rows.normalize, norm, {"EPSILON": 1e-6, "SIZE": 4096, "WIDTH": 4096}, num_warps=8)
    compile_kernel(rows.rotate, rotation, head | {"NORMALIZED": True}, num_warps=2)
    compile_kernel(rows.silu_and_multiply, {"gate_up": number, "output": number}, {"SIZE": 14336, "BLOCK": 1024})
    for outputs in (4096, 28672):
        tiles = ProductTiles.of(outputs, {"bf16": 2, "fp32": 4}[dtype])
        sizes = {"OUTPUTS": outputs, "INPUTS": 4096, "ROWS": tiles.rows, "COLUMNS": tiles.columns, "DEPTH": tiles.depth}
        flags = {"BIASED": False, "ADDED": True, "IEEE": dtype == "fp32", "WIDE": False}
        result = compile_kernel(linear.multiply, product, sizes | flags, num_warps=tiles.warps, num_stages=tiles.stages)
        assert result.metadata.shared <= SMALLEST_SHARED_MEMORY
        assert ("wgmma" in result.asm["ptx"]) == (dtype == "bf16")
        assert "cp.async" in result.asm["ptx"]
