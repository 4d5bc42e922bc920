// The macros of the portable dialect, and the start of a kernel.
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define GLOBAL_X ((int)(GROUP_X * blockDim.x + threadIdx.x))
#define GLOBAL_Y ((int)(GROUP_Y * blockDim.y + threadIdx.y))
#define GLOBAL_Z ((int)(GROUP_Z * blockDim.z + threadIdx.z))
#define GROUP ((int)(blockIdx.x * gridDim.y + blockIdx.y))
#define LOCAL_X ((int)threadIdx.x)
#define BARRIER() __syncthreads()
#define MAKE4(a, b, c, d) make_float4((a), (b), (c), (d))
#define SPLAT4(a) splat4(a)
#define LOAD4_F32(buffer, i) ((buffer)[i])
#define LOAD4_F16(buffer, i) from_half4((buffer)[i])
#define LOAD1_F32(buffer, i) ((buffer)[i])
#define LOAD1_F16(buffer, i) from_half((buffer)[i])
#define LOAD4_BOOL8(buffer, i) from_bytes((buffer)[i])
#define LOAD1_BOOL8(buffer, i) ((buffer)[i] != 0 ? 1.0f : 0.0f)
#define LANE4_BOOL8(buffer, i) (((const unsigned char *)(buffer))[i] != 0 ? 1.0f : 0.0f)
#define LANE4_F32(buffer, i) (((const float *)(buffer))[i])
#define LANE4_F16(buffer, i) from_half(((const unsigned short *)(buffer))[i])
#define STORE4_F32(buffer, i, value) (buffer)[i] = (value)
#define STORE4_F16(buffer, i, value) (buffer)[i] = to_half4(value)
#define STORE4_F16_BOUNDED(buffer, i, value) (buffer)[i] = to_bounded_half4(value)
#define STORE1_F32(buffer, i, value) (buffer)[i] = (value)
#define STORE1_F16(buffer, i, value) (buffer)[i] = to_half(value)
#define STORE4_BOOL8(buffer, i, value) (buffer)[i] = to_bytes(value)
#define LANES4(value, left, fill) lanes4((value), (left), (fill))
#define MASK4(value, left) lanes4((value), (left), 0.0f)
#define WHERE4(condition, yes, no) where4((condition), (yes), (no))
#define CLAMP_MIN4(low, value) WHERE4(LESS4((value), (low)), (low), (value))
#define TO_FLOAT(a) ((float)(a))
#define TO_INT(a) ((int)(a))
#define LANE_SUM(a) ((a).x + (a).y + (a).z + (a).w)
#define LANE_MAX(a) fmaxf(fmaxf((a).x, (a).y), fmaxf((a).z, (a).w))
#define LARGER(a, b) fmaxf((a), (b))
#define FINITE_SIZE4(value) finite_size4(value)
// Programmatic dependent launch: the next kernel's blocks may start while this kernel runs, and each block
// waits before it accesses what earlier kernels wrote. One statement has both instructions, in this order:
// NVRTC would move a separate wait before the loads of constant data, which should overlap with the wait.
#if defined(OVERLAPPED) && __CUDA_ARCH__ >= 900
#define BEGIN_KERNEL() \
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory")
#else
#define BEGIN_KERNEL()
#endif
#if __CUDA_ARCH__ >= 900
#define READ_AHEAD() read_ahead(ahead, ahead_part)
#else
#define READ_AHEAD()
#endif
