"""What native kernels take, and the tables of them: the structures of cpu/interface.h and kernel_table.h."""

from __future__ import annotations

import ctypes
import enum

import torch

MAX_HEAD_DIM = 1024
"""``kMostHeadDim`` of cpu/rope.h."""
NUMBER_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""``RinglineNumberType``"""


class AttentionArguments(ctypes.Structure):
    """``RinglineAttention`` of cpu/interface.h."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("query_rope", ctypes.c_void_p),
        ("query_rope_stride", ctypes.c_int64),
        ("query_rope_head_stride", ctypes.c_int64),
        ("cache", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("key_stride", ctypes.c_int64),
        ("value_stride", ctypes.c_int64),
        ("query_starts", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("block_table_stride", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("sinks", ctypes.c_void_p),
        ("group", ctypes.c_int32),
        ("num_seqs", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("latent_dim", ctypes.c_int32),
        ("sliding_window", ctypes.c_int32),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("logit_softcap", ctypes.c_float),
    )


class LinearArguments(ctypes.Structure):
    """``RinglineLinear`` of cpu/interface.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("number_type", ctypes.c_int32),
        ("wide", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class GroupedLinearArguments(ctypes.Structure):
    """``RinglineGroupedLinear`` of cpu/interface.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("x_group_stride", ctypes.c_int64),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class RoutingArguments(ctypes.Structure):
    """``RinglineRouting`` of cpu/interface.h."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("expert_scales", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("num_experts", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("num_groups", ctypes.c_int32),
        ("topk_groups", ctypes.c_int32),
        ("group_best", ctypes.c_int32),
        ("scoring", ctypes.c_int32),
        ("renormalize", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class ExpertsArguments(ctypes.Structure):
    """``RinglineExperts`` of cpu/interface.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("gate_up_bias", ctypes.c_void_p),
        ("down_bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("gathered", ctypes.c_void_p),
        ("activated", ctypes.c_void_p),
        ("rounded", ctypes.c_void_p),
        ("row_scales", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("num_experts", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("limit", ctypes.c_float),
        ("alpha", ctypes.c_float),
    )


class RowsArguments(ctypes.Structure):
    """``RinglineRows`` of cpu/interface.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class SelectionArguments(ctypes.Structure):
    """``RinglineSelection`` of cpu/interface.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("num_threads", ctypes.c_int32),
    )


class NormArguments(ctypes.Structure):
    """``RinglineNorm`` of cpu/interface.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("mean_width", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("output_stride", ctypes.c_int64),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class ActivationArguments(ctypes.Structure):
    """``RinglineActivation`` of cpu/interface.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("up_stride", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class SigmoidGateArguments(ctypes.Structure):
    """``RinglineSigmoidGate`` of cpu/interface.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class RotationArguments(ctypes.Structure):
    """``RinglineRotation`` of cpu/interface.h."""

    _fields_ = (
        ("heads", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("query_scales", ctypes.c_void_p),
        ("query_weight", ctypes.c_void_p),
        ("key_weight", ctypes.c_void_p),
        ("value_weight", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("mean_width", ctypes.c_int32),
        ("rotary_dim", ctypes.c_int32),
        ("interleaved", ctypes.c_int32),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
    )


class Int8Weight(ctypes.Structure):
    """``RinglineInt8Weight`` of cpu/interface.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("column_sums", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
    )


class Int8Call(ctypes.Structure):
    """``RinglineInt8Call`` of cpu/interface.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("input_stride", ctypes.c_int64),
        ("residual", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("input_type", ctypes.c_int32),
        ("output_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class Int8Packing(ctypes.Structure):
    """``RinglineInt8Packing`` of cpu/interface.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("column_sums", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("input_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class OperationKind(enum.IntEnum):
    """``RinglineOperationKind`` of cpu/interface.h."""

    ATTEND = 0
    MULTIPLY = 1
    NORMALIZE = 2
    ROTATE = 3
    ACTIVATE = 4
    MULTIPLY_INT8 = 5
    SELECT = 6
    GATE = 7
    MULTIPLY_GROUPS = 8
    ROUTE = 9
    RUN_EXPERTS = 10
    RUN_INT8_EXPERTS = 11


class Operation(ctypes.Structure):
    """``RinglineOperation`` of cpu/interface.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("kernels", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("more_arguments", ctypes.c_void_p),
    )


class Step(ctypes.Structure):
    """``RinglineStep`` of cpu/interface.h."""

    _fields_ = (
        ("query_starts", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("block_table_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("selected", ctypes.c_void_p),
        ("num_selected", ctypes.c_int64),
        ("num_seqs", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class KernelTable(ctypes.Structure):
    """``Kernels`` of cpu/kernel_table.h."""

    _fields_ = (
        ("attention", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(AttentionArguments))),
        ("linear", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LinearArguments))),
        ("normalize", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(NormArguments))),
        ("rotate", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(RotationArguments))),
        ("activate", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ActivationArguments))),
        ("read_rows", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(RowsArguments))),
        ("argmax", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LinearArguments))),
        ("select_rows", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(SelectionArguments))),
        ("sigmoid_gate", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(SigmoidGateArguments))),
        ("grouped_linear", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(GroupedLinearArguments))),
        ("route", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(RoutingArguments))),
        ("experts", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ExpertsArguments))),
    )


class Int8KernelTable(ctypes.Structure):
    """``Int8Kernels`` of cpu/kernel_table.h."""

    _fields_ = (
        ("linear", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Int8Weight), ctypes.POINTER(Int8Call))),
        ("pack", ctypes.CFUNCTYPE(None, ctypes.POINTER(Int8Packing))),
        ("experts", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ExpertsArguments))),
    )
