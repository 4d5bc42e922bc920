"""Rewrites launches with more work groups on an axis than a device permits."""

from __future__ import annotations

from dataclasses import replace

from litegpu.backends.program import Launch, Program
from litegpu.codegen import round_up
from litegpu.codegen.dialect import Groups


def fold(groups: Groups, limit: int, cluster: int = 1) -> Groups:
    """Return a grid (x, y, 1) of at least as many work groups; x <= `limit`, whole clusters."""
    total = groups[0] * groups[1] * groups[2]
    rows = -(-total // (limit - limit % cluster))
    return round_up(-(-total // rows), cluster), rows, 1


def fold_launches(program: Program, limits: Groups) -> Program:
    """Return a program whose launches respect the maximum number of groups per axis (x, y, z).

    For each grid that exceeds the limits, the program gets a variant of the kernel. The variant
    computes its position from the group ids on the x and y axes (`LaunchAttributes.folded`).
    """
    kernels = {kernel.name: kernel for kernel in program.kernels}
    launches: list[Launch] = []
    for launch in program.launches:
        text = kernels[launch.kernel]
        groups = groups_of(launch)
        if any(count > limit for count, limit in zip(groups, limits, strict=True)):
            x, y, z = groups
            attributes = replace(text.attributes, folded=groups)
            text = replace(text, name=f"{text.name}_{x}x{y}x{z}", attributes=attributes)
            folded = fold(groups, limits[0], attributes.cluster_size)
            x, y, z = (n * b for n, b in zip(folded, launch.local_size, strict=True))
            launch = replace(launch, kernel=text.name, global_size=(x, y, z))
            kernels[text.name] = text
        launches.append(launch)
    return replace(program, kernels=tuple(kernels.values()), launches=tuple(launches))


def groups_of(launch: Launch) -> Groups:
    """Return the number of work groups of a launch on each axis."""
    x, y, z = (g // b for g, b in zip(launch.global_size, launch.local_size, strict=True))
    return x, y, z
