"""MediaPipe's custom operations in NumPy, because the runtime has no CPU kernels for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Pair = tuple[int, int]


def activate(name: str, values: Doubles) -> Doubles:
    """Apply a fused activation."""
    limits = {"RELU": (0, np.inf), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1)}
    if name == "TANH":
        return np.tanh(values)
    return np.clip(values, *limits[name]) if name in limits else values


def leading_pad(size: int, kernel: int, stride: int, same: bool) -> int:
    """Return the padding before an image."""
    return max(0, kernel - (size - 1) % stride - 1) // 2 if same else 0


def max_pool(image: Floats, kernel: Pair, stride: Pair, same: bool) -> tuple[Doubles, Doubles]:
    """Return maxima and where in their windows they are."""
    n, height, width, channels = image.shape
    pads = [leading_pad(image.shape[1 + i], kernel[i], stride[i], same) for i in (0, 1)]
    rows, columns = (
        -(-size // s) if same else (size - k) // s + 1
        for size, k, s in zip((height, width), kernel, stride, strict=True)
    )
    best = np.full((n, rows, columns, channels), -np.inf)
    position = np.zeros_like(best)
    for y, x in np.ndindex(rows, columns):
        for ky, kx in np.ndindex(kernel):
            iy, ix = y * stride[0] - pads[0] + ky, x * stride[1] - pads[1] + kx
            if 0 <= iy < height and 0 <= ix < width:
                better = image[:, iy, ix] > best[:, y, x]
                best[:, y, x][better] = image[:, iy, ix][better]
                position[:, y, x][better] = ky * kernel[1] + kx
    return best, position


def max_unpool(
    values: Doubles, positions: Doubles, kernel: Pair, stride: Pair, same: bool
) -> Doubles:
    """Return the values at the places of their windows, in an image of zeros."""
    n, height, width, channels = values.shape
    image = np.zeros((n, height * kernel[0], width * kernel[1], channels))
    pads = [leading_pad(image.shape[1 + i], kernel[i], stride[i], same) for i in (0, 1)]
    for b, y, x, c in np.ndindex(*values.shape):
        ky, kx = divmod(int(positions[b, y, x, c]), kernel[1])
        iy, ix = y * stride[0] - pads[0] + ky, x * stride[1] - pads[1] + kx
        if 0 <= iy < image.shape[1] and 0 <= ix < image.shape[2]:
            image[b, iy, ix, c] = values[b, y, x, c]
    return image


def transpose_conv(
    image: Floats, weights: Floats, bias: Floats | None, stride: Pair, same: bool
) -> Doubles:
    """Return what Convolution2DTransposeBias makes with weights [O, H, W, I]."""
    n, height, width, _ = image.shape
    outputs, *kernel, _ = weights.shape
    totals = [
        max(0, k - (size - 1) % s - 1) if same else 0
        for size, k, s in zip((height, width), kernel, stride, strict=True)
    ]
    rows, columns = (
        s * (size - 1) + k - total
        for size, k, s, total in zip((height, width), kernel, stride, totals, strict=True)
    )
    output = np.zeros((n, rows, columns, outputs)) + (0 if bias is None else bias)
    for y, x, ky, kx in np.ndindex(height, width, *kernel):
        oy, ox = y * stride[0] - totals[0] // 2 + ky, x * stride[1] - totals[1] // 2 + kx
        if 0 <= oy < rows and 0 <= ox < columns:
            output[:, oy, ox] += image[:, y, x].astype(np.float64) @ weights[:, ky, kx].T
    return output


def resample(image: Floats, warp: Floats) -> Doubles:
    """Return the image at (x, y) = warp[..., :2]; what is outside counts as zero."""
    _, height, width, channels = image.shape
    output = np.zeros((*warp.shape[:3], channels))
    for b, y, x in np.ndindex(*warp.shape[:3]):
        fx, fy = warp[b, y, x, :2]
        output[b, y, x] = _bilinear(image[b], fx, fy, height, width)
    return output


def _bilinear(image: Floats, fx: np.float32, fy: np.float32, height: int, width: int) -> Doubles:
    left, top = int(np.floor(fx)), int(np.floor(fy))
    tx, ty = fx - np.float32(left), fy - np.float32(top)
    total = np.zeros(image.shape[-1])
    for iy, wy in ((top, 1 - ty), (top + 1, ty)):
        for ix, wx in ((left, 1 - tx), (left + 1, tx)):
            if 0 <= iy < height and 0 <= ix < width:
                total += image[iy, ix].astype(np.float64) * wx * wy
    return total


def transform_image(image: Floats, matrix: Floats, size: Pair, corners: bool) -> Doubles:
    """Return an image of `size` whose pixels come from where the 4x4 matrix sends them."""
    n, height, width, channels = image.shape
    m = matrix.reshape(4, 4).astype(np.float64)
    shift = (m[:2, 0] + m[:2, 1]) * 0.5 - 0.5 if corners else np.zeros(2)
    output = np.zeros((n, *size, channels))
    for y, x in np.ndindex(*size):
        sx, sy = m[:2, 0] * x + m[:2, 1] * y + m[:2, 3] + shift
        if 0 <= sx <= width - 1 and 0 <= sy <= height - 1:
            output[:, y, x] = [_bilinear(each, sx, sy, height, width) for each in image]
    return output


def transform_landmarks(points: Floats, matrix: Floats, dimensions: int, scale: float) -> Doubles:
    """Return points (x, y, ...) of so many dimensions, x and y sent through the 4x4 matrix."""
    m = matrix.reshape(4, 4).astype(np.float64)
    flat = points.reshape(-1, dimensions).astype(np.float64)
    output = flat.copy()
    output[:, :2] = flat[:, :2] @ m[:2, :2].T + m[:2, 3] * scale
    return output.reshape(points.shape)


def pairs(indices: Sequence[int]) -> list[int]:
    """Return the indices, the last one twice if their number is odd."""
    return [*indices, *(indices[-1:] if len(indices) % 2 else ())]


def _box(points: Doubles, subset: Sequence[int], angle: float) -> tuple[Doubles, Doubles]:
    """Return the centre and the size of the box around rotated points; the centre rotated back."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    chosen = points[pairs(subset), :2] @ turn.T
    low, high = chosen.min(axis=0), chosen.max(axis=0)
    return turn.T @ ((low + high) / 2), high - low


def landmarks_to_matrix_v1(
    points: Floats,
    subset: Sequence[int],
    left: int,
    right: int,
    landmarks_range: float,
    multiplier: float,
    input_size: Pair,
    output_size: Pair,
) -> Doubles:
    """Return the 4x4 matrix that brings a picture's part of these landmarks (x, y, z) upright."""
    p = points.reshape(-1, 3).astype(np.float64)
    angle = -np.arctan((p[right, 1] - p[left, 1]) / (p[right, 0] - p[left, 0]))
    middle, size = _box(p, subset, angle)
    box, extent = size * multiplier, landmarks_range
    scale = np.diag([box[0] / extent, box[1] / extent, 1])
    cos, sin = np.cos(-angle), np.sin(-angle)
    x, y = 2 * middle / extent - 1
    turn = np.array([[cos, -sin, x], [sin, cos, y], [0, 0, 1]])
    (ih, iw), (oh, ow) = input_size, output_size
    to_relative = np.array([[2 / (ow - 1), 0, -1], [0, 2 / (oh - 1), -1], [0, 0, 1]])
    half_width, half_height = (iw - 1) / 2, (ih - 1) / 2
    to_absolute = np.array([[half_width, 0, half_width], [0, half_height, half_height], [0, 0, 1]])
    m = to_absolute @ turn @ scale @ to_relative
    rows = [[*m[0, :2], 0, m[0, 2]], [*m[1, :2], 0, m[1, 2]], [*m[2], 0], [0, 0, 0, 1]]
    return np.array(rows)[None]


def landmarks_to_matrix_v2(
    points: Floats,
    subset: Sequence[int],
    left: int,
    right: int,
    target: float,
    output_size: Pair,
    scales: tuple[float, float],
) -> Doubles:
    """Return the 4x4 matrix from pixels of the output to those around the landmarks (x, y, z)."""
    p = points.reshape(-1, 3).astype(np.float64)
    dx, dy = p[right, :2] - p[left, :2]
    angle = target - np.arctan2(dy, dx)
    (cx, cy), (width, height) = _box(p, subset, angle)
    oh, ow = output_size
    shift, back, turn, scale = (np.eye(4) for _ in range(4))
    shift[:2, 3] = cx, cy
    back[:2, 3] = -ow / 2, -oh / 2
    turn[:2, :2] = [[np.cos(-angle), -np.sin(-angle)], [np.sin(-angle), np.cos(-angle)]]
    scale[0, 0], scale[1, 1] = scales[0] * width / ow, scales[1] * height / oh
    return (shift @ turn @ scale @ back)[None]
