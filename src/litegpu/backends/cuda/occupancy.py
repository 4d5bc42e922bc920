"""Limits the occupancy of overlapping launches, so that thread blocks are spread evenly.

Thread blocks of the next kernel start on the multiprocessors that become free first. If a grid has
fewer blocks than the GPU can run at once, the blocks accumulate on these multiprocessors. Example:
125 blocks may run as four blocks on each of 32 multiprocessors, out of 132. A launch therefore
requests enough shared memory that no multiprocessor runs more than its share.
docs/decisions/0037-even-block-distribution.md contains the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from litegpu.backends.cuda.driver import call, driver
from litegpu.backends.limits import SHARED_BYTES, exceeded
from litegpu.backends.program import Launch
from litegpu.codegen import KernelText, round_up
from litegpu.codegen.cuda import dynamic_shared_bytes
from litegpu.device_model import DeviceModel, model_of

if TYPE_CHECKING:
    from litegpu.backends.cuda.device import CUDADevice

_WARP, _MAX_THREADS = 32, 1024
"""Threads per warp, and the maximum number of threads per block."""
_REGISTERS_AT_ONCE = 8
"""Granularity of register allocation per thread."""
_UNIT = 16
"""Granularity of shared memory in bytes."""


def even_bytes(model: DeviceModel, share: int, declared: int) -> int:
    """Return the shared memory per block that limits occupancy to `share` blocks; 0 if unneeded.

    `declared` is the shared memory that the kernel declares per block.
    """
    whole = model.shared_bytes // (share + 1) + _UNIT  # one block more than this does not fit
    return max(whole // _UNIT * _UNIT - model.reserved_bytes - declared, 0)


def shared_bytes(launch: Launch, kernel: KernelText, function: Any, device: CUDADevice) -> int:
    """Return the shared memory that a launch requests, and set the function's limit to it.

    Raises KernelError if the device cannot launch the kernel, and CudaError for other failures.
    """
    cu, needed, model = driver(), dynamic_shared_bytes(kernel), model_of(device.capability)
    which = cu.CUfunction_attribute
    (declared,) = call(cu.cuFuncGetAttribute, which.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
    (registers,) = call(cu.cuFuncGetAttribute, which.CU_FUNC_ATTRIBUTE_NUM_REGS, function)
    # All launches of a function share one limit.
    room = min(model.shared_bytes_per_block, device.info.local_memory_bytes) - declared
    # The driver reports MAX_THREADS_PER_BLOCK only for loaded functions, and would load them now.
    of_warp = round_up(max(registers, 1), _REGISTERS_AT_ONCE) * _WARP
    most = min(model.registers // of_warp * _WARP, _MAX_THREADS)
    threads = math.prod(launch.local_size)
    # Declared arrays fit on the device, or loading the module would have failed.
    shared = (SHARED_BYTES, needed and needed + declared, room + declared)
    if reason := exceeded(shared, (f"threads of {registers} registers", threads, most)):
        raise device.rejects({kernel.name: reason})
    if room > 0:
        which_limit = which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(cu.cuFuncSetAttribute, function, which_limit, room)
    if not model.overlapped_launches:
        return needed
    blocks = math.prod(launch.global_size) // threads
    resident = model.resident_blocks(threads, max(registers, 1), declared + needed)
    cluster = kernel.attributes.cluster_size
    for share in range(-(-blocks // device.info.compute_units), resident):
        wanted = even_bytes(model, share, declared)
        if not needed < wanted <= room:
            break
        if cluster == 1 or _clusters(launch, function, cluster, wanted) * cluster >= blocks:
            return wanted
    return needed


def _clusters(launch: Launch, function: Any, size: int, nbytes: int) -> int:
    """Return the number of clusters that fit the GPU (a cluster runs within one GPC)."""
    cu = driver()
    config = launch_config(launch.global_size, launch.local_size, nbytes)
    cluster = cu.CUlaunchAttribute()
    cluster.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    dimension = cluster.value.clusterDim
    dimension.x, dimension.y, dimension.z = 1, size, 1
    config.attrs, config.numAttrs = [cluster], 1
    return int(call(cu.cuOccupancyMaxActiveClusters, function, config)[0])


def launch_config(items: Sequence[int], local: Sequence[int], nbytes: int) -> Any:
    """Return the driver's configuration of a launch with `nbytes` of shared memory."""
    config = driver().CUlaunchConfig()
    sizes = [g // b for g, b in zip(items, local, strict=True)]
    # The prelude says which axis of the grid is which.
    config.gridDimY, config.gridDimX, config.gridDimZ = sizes
    config.blockDimX, config.blockDimY, config.blockDimZ = local
    config.sharedMemBytes = nbytes
    return config
