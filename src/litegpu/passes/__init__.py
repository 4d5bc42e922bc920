"""Graph rewrites, one per file, and the order in which they run."""

from __future__ import annotations

from litegpu.passes.activations_before_slices import activations_before_slices
from litegpu.passes.base import FusionPass, Pass, PassResult
from litegpu.passes.batch_products import batch_products
from litegpu.passes.blocks_into_dilation import blocks_into_dilation
from litegpu.passes.bytes_into_resize import bytes_into_resize
from litegpu.passes.compose_elementwise import compose_elementwise
from litegpu.passes.depthwise_into_pointwise import depthwise_into_pointwise
from litegpu.passes.drop_dead_pixels import drop_dead_pixels
from litegpu.passes.expand_into_depthwise import expand_into_depthwise
from litegpu.passes.find_normalization import find_normalization
from litegpu.passes.fold_constants import fold_constants
from litegpu.passes.fuse_attention import fuse_attention
from litegpu.passes.fuse_elementwise import fuse_elementwise
from litegpu.passes.hoist_elementwise import hoist_elementwise
from litegpu.passes.index_map_into_window import index_map_into_window
from litegpu.passes.index_maps_before_permutations import index_maps_before_permutations
from litegpu.passes.join_before_sums import join_before_sums
from litegpu.passes.join_channels import join_channels
from litegpu.passes.join_products import join_products
from litegpu.passes.join_slices import join_slices
from litegpu.passes.matrix_into_channels import matrix_into_channels
from litegpu.passes.merge_equal_nodes import merge_equal_nodes
from litegpu.passes.merge_index_maps import merge_index_maps
from litegpu.passes.merge_permutations import merge_permutations
from litegpu.passes.merge_siblings import merge_siblings
from litegpu.passes.normalize_into_rows import normalize_into_rows
from litegpu.passes.pad_into_operand import pad_into_operand
from litegpu.passes.pad_into_window import pad_into_window
from litegpu.passes.pool_into_convolution import pool_into_convolution
from litegpu.passes.products_into_sums import products_into_sums
from litegpu.passes.regroup_matrices import regroup_matrices
from litegpu.passes.remove_identity import remove_identity
from litegpu.passes.repeats_into_operands import repeats_into_operands
from litegpu.passes.reshape_into_update import reshape_into_update
from litegpu.passes.resize_into_arg import resize_into_arg
from litegpu.passes.rows_into_matrices import rows_into_matrices
from litegpu.passes.scale_before_weights import scale_before_weights
from litegpu.passes.scale_into_weights import scale_into_weights
from litegpu.passes.scales_after_products import scales_after_products
from litegpu.passes.sink_permutations import sink_permutations
from litegpu.passes.slices_before_transpose import slices_before_transpose
from litegpu.passes.slices_into_gather import slices_into_gather
from litegpu.passes.slices_into_index_map import slices_into_index_map
from litegpu.passes.softmax_before_values import softmax_before_values
from litegpu.passes.split_epilogues import split_epilogues

BEFORE_NORMALIZE: tuple[Pass, ...] = (
    # Ops read their weights as plain constants.
    fold_constants,
    # Casts to the same type, which patterns below do not expect.
    remove_identity,
    # After fold_constants, which folds the indices of slices.
    batch_products,
    # Before normalization splits reductions and renames ops.
    find_normalization,
    # Before slices_before_transpose, which would put transposes between the parts and their source.
    slices_into_gather,
    # Before slices_before_transpose, which requires that only slices read the whole value.
    join_before_sums,
    slices_before_transpose,
    # Before the two passes below, which look for matrix products.
    rows_into_matrices,
    scales_after_products,
    # Before regroup_matrices, which looks for a softmax as the first operand.
    softmax_before_values,
    # Masks of scores then have as many dimensions as the scores.
    regroup_matrices,
)
"""Passes on the operations of the model, before normalization."""

PASSES: tuple[Pass, ...] = (
    # First, so that other passes skip removed nodes. Normalization may have created new constants.
    remove_identity,
    reshape_into_update,
    # Before their ops are fused with others.
    compose_elementwise,
    # Before hoist_elementwise, which moves activations further up.
    activations_before_slices,
    blocks_into_dilation,
    # Before hoist_elementwise, which moves ops above the CONCATENATION.
    slices_into_index_map,
    sink_permutations,
    # Moves ops next to kernels that can fuse them.
    hoist_elementwise,
    merge_permutations,
    join_slices,
    pad_into_window,
    # After pad_into_window: an upsampled image may have a border of zeros.
    index_map_into_window,
    # Index maps that no window has absorbed.
    merge_index_maps,
    # After merge_index_maps: a map that was merged into its reader is not merged with an equal one.
    merge_equal_nodes,
    # After merge_index_maps: each part is one node away from its source.
    join_channels,
    # Before fuse_elementwise, which moves the reading op into its producer.
    pad_into_operand,
    resize_into_arg,
    scale_into_weights,
    # Before join_products, so that projections read only the pixels that remain.
    drop_dead_pixels,
    join_products,
    # Before fuse_elementwise, after which siblings have different epilogues.
    merge_siblings,
    products_into_sums,
    fuse_elementwise,
    # After fuse_elementwise: the normalization then has its scale and shift.
    normalize_into_rows,
    # After fuse_elementwise: operands that would be fused into the repetition remain.
    repeats_into_operands,
    # After fuse_elementwise: an index map and the ops on its result are then one node.
    index_maps_before_permutations,
    # Both need casts fused into one kernel.
    bytes_into_resize,
    matrix_into_channels,
    # After fuse_elementwise: the remaining ops without a producer to fuse with.
    scale_before_weights,
)
"""Passes after normalization, when elementwise operations are the epilogue of COPY nodes."""

FUSIONS: tuple[FusionPass, ...] = (
    # Includes the epilogues from fuse_elementwise.
    depthwise_into_pointwise,
    # After depthwise_into_pointwise, whose result it extends.
    expand_into_depthwise,
    # After the two above: a convolution that computes its own input cannot include a pool.
    pool_into_convolution,
    # Needs scales and masks fused into the products.
    fuse_attention,
    # Last: splits kernels that the passes above made too large.
    split_epilogues,
)
"""Passes whose fused nodes need a kernel on the device."""

__all__ = ["BEFORE_NORMALIZE", "FUSIONS", "PASSES", "FusionPass", "Pass", "PassResult"]
