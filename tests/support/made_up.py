"""A report, a profile and a model whose names contain markup, for tests of their display."""

from __future__ import annotations

from litegpu import DelegationReport
from litegpu.delegation.cost_model import Estimate, Split
from litegpu.delegation.profile import KernelProfile, PartitionProfile, Profile
from litegpu.delegation.report import Advice, Composite, LeftOut, Partition, RejectedNode
from litegpu.engine.peaks import Peaks
from litegpu.ops.common.units import Unit
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, step

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"

REPORT = DelegationReport(
    backend="opencl",
    device="Some GPU",
    precision="fp16",
    total_nodes=16,
    ops={i: "CONV_2D" if i < 4 else "ABS" for i in range(16)},
    rejected=(
        *(RejectedNode(i, "TOPK_V2", 2, "Operation is not supported.") for i in range(6, 13)),
        RejectedNode(13, "PAD", 1, "The paddings must not be negative."),
        RejectedNode(14, "ADD", 1, "tensor 7 is UINT8 instead of FLOAT32."),
        RejectedNode(15, "ADD", 1, "tensor 8 is UINT8 instead of FLOAT32."),
    ),
    partitions=(
        Partition(
            *((0, 1, 2), 2, 3 << 20, 3000, 5 << 30, ("image",), ("scores",)),
            estimate=Estimate(3e-3, 2e-4, 4096),
        ),
        Partition((3,), 1, 100, 100, 0),
    ),
    left_out=(LeftOut((4, 5), "Others are worth more.", Estimate(1e-6, 4e-5, 64)),),
    split=Split(2, 2560, 4.1e-5),
    advice=(Advice("lanes", "Fewer channels.", (0,)),),
    notes=("One more thing.",),
    composites=(Composite("odml.rms_norm", (3, 6, 7), 21), Composite("odml.rope", (8,), 0)),
)


def made_up_profile(peaks: bool = True) -> Profile:
    """Return a profile whose figures are easy to read."""
    floor = 25e-6 if peaks else None
    kernels = (
        KernelProfile(
            *("conv_2d_0", "conv_2d", "CONV_2D", 4, (5,), (1, 8, 8, 16)),
            *(100e-6, 3 * 10**6, 2 * 10**6, floor),
        ),
        KernelProfile("copy_0", "copy", "COPY", -1, (), (1, 8, 8, 16), 60e-6, 0, 600, floor),
    )
    host = {"copy in": 1e-6, "submit": 2e-6, "wait": 150e-6, "copy out": 3e-6}
    part = PartitionProfile((4, 5), kernels, 140e-6 if peaks else None, None, host)
    rates = {Unit.FP32: 5e12, Unit.FP16_MATRIX: 6e13}
    ceilings = Peaks(rates, ((2 << 20, 7e11), (256 << 20, 8e11))) if peaks else None
    return Profile("cuda", "A GPU", "fp16", 20, ceilings, (part,), 180e-6, 4e-6)


def hostile_model() -> bytes:
    """Return a model whose names and custom operation are markup."""
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 4), name=HOSTILE)
    y = step(writer, "SIN", x, name=HOSTILE + "2")
    writer.output(step(writer, CPU_ONLY, y, name="<b>bold</b>"))
    return writer.build()
