/* The structs of the runtime's C interface, declared once more so that a C compiler can be asked
   for their layout. Pointers to data are `void *`, pointers to functions `fn`, enums `code`. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { kFirst, kSecond } code;
typedef int (*fn)(void);

typedef struct { float scale; int32_t zero_point; } TfLiteQuantizationParams;
typedef struct { code type; void *params; } TfLiteQuantization;
typedef struct { void *scale; void *zero_point; int32_t quantized_dimension; } TfLiteAffineQuantization;
typedef struct { int32_t scale, zero_point, blocksize, quantized_dimension; } TfLiteBlockwiseQuantization;
typedef struct {
  code format;
  int dense_size;
  void *array_segments, *array_indices;
} TfLiteDimensionMetadata;
typedef struct {
  void *traversal_order, *block_map, *dim_metadata;
  int dim_metadata_size;
} TfLiteSparsity;
typedef struct {
  code type;
  union { float *f; void *raw; } data;
  void *dims;
  TfLiteQuantizationParams params;
  code allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  void *delegate;
  int buffer_handle;
  bool data_is_stale, is_variable;
  TfLiteQuantization quantization;
  void *sparsity;
  const void *dims_signature;
} TfLiteTensor;
typedef struct {
  void *inputs, *outputs, *intermediates, *temporaries;
  void *user_data, *builtin_data;
  const void *custom_initial_data;
  int custom_initial_data_size;
  void *delegate;
  bool might_have_side_effect;
} TfLiteNode;
typedef struct {
  fn init, free, prepare, invoke, profiling_string;
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *registration_external, *async_kernel;
  uint64_t inplace_operator;
} TfLiteRegistration;
typedef struct {
  size_t tensors_size;
  fn GetExecutionPlan;
  void *tensors, *impl_;
  fn ResizeTensor, ReportError, AddTensors, GetNodeAndRegistration;
  fn ReplaceNodeSubsetsWithDelegateKernels;
  int recommended_num_threads;
  fn GetExternalContext, SetExternalContext;
  bool allow_fp32_relax_to_fp16;
  void *profiler;
  fn AllocatePersistentBuffer, AllocateBufferForEval, RequestScratchBufferInArena;
  fn GetScratchBuffer, ResizeTensorExplicit, PreviewDelegatePartitioning;
  fn GetTensor, GetEvalTensor, GetModelMetadata;
  fn AcquireSubgraphContext, ReleaseSubgraphContext;
} TfLiteContext;
typedef struct {
  void *data_;
  fn Prepare, CopyFromBufferHandle, CopyToBufferHandle, FreeBufferHandle;
  int64_t flags;
  void *opaque_delegate_builder;
} TfLiteDelegate;
typedef struct {
  void *delegate, *nodes_to_replace, *input_tensors, *output_tensors;
} TfLiteDelegateParams;

typedef struct { code activation; } TfLiteActivationParams;
typedef struct { code activation; bool pot_scale_int16; } TfLiteAddParams;
typedef struct { code output_type; } TfLiteArgParams;
typedef struct { int axis; } TfLiteOneHotParams;
typedef struct { bool adj_x, adj_y, asymmetric_quantize_inputs; } TfLiteBatchMatMulParams;
typedef struct {
  code activation;
  float cell_clip, proj_clip;
  bool merge_outputs, time_major, asymmetric_quantize_inputs;
} TfLiteBidirectionalSequenceLSTMParams;
typedef struct {
  bool time_major;
  code activation;
  bool merge_outputs, asymmetric_quantize_inputs;
} TfLiteBidirectionalSequenceRNNParams;
typedef struct { int block_size; } TfLiteBlockParams;
typedef struct { int num_boundaries; const float *boundaries; } TfLiteBucketizeParams;
typedef struct { code in_data_type, out_data_type; } TfLiteCastParams;
typedef struct { int axis; code activation; } TfLiteConcatenationParams;
typedef struct {
  code padding;
  int stride_width, stride_height;
  code activation;
  int dilation_width_factor, dilation_height_factor;
  code quantized_bias_type;
} TfLiteConvParams;
typedef struct {
  code padding;
  int stride_width, stride_height, stride_depth;
  int dilation_width_factor, dilation_height_factor, dilation_depth_factor;
  code activation;
} TfLiteConv3DParams;
typedef struct { bool exclusive, reverse; } TfLiteCumsumParams;
typedef struct {
  code padding;
  int stride_width, stride_height, depth_multiplier;
  code activation;
  int dilation_width_factor, dilation_height_factor;
} TfLiteDepthwiseConvParams;
typedef struct { code combiner; } TfLiteEmbeddingLookupSparseParams;
typedef struct { float min, max; int num_bits; bool narrow_range; } TfLiteFakeQuantParams;
typedef struct {
  code activation, weights_format;
  bool keep_num_dims, asymmetric_quantize_inputs;
  code quantized_bias_type;
} TfLiteFullyConnectedParams;
typedef struct { int axis, batch_dims; } TfLiteGatherParams;
typedef struct { bool approximate; } TfLiteGeluParams;
typedef struct { float alpha; } TfLiteLeakyReluParams;
typedef struct { int radius; float bias, alpha, beta; } TfLiteLocalResponseNormParams;
typedef struct {
  code activation;
  float cell_clip, proj_clip;
  code kernel_type;
  bool asymmetric_quantize_inputs;
} TfLiteLSTMParams;
typedef struct { code mode; } TfLiteMirrorPaddingParams;
typedef struct { int values_count, axis; } TfLitePackParams;
typedef struct {
  code padding;
  int stride_width, stride_height, filter_width, filter_height;
  code activation;
  struct { int width, height, width_offset, height_offset; } computed;
} TfLitePoolParams;
typedef struct { code reduce_function; } TfLiteReduceWindowParams;
typedef struct { bool keep_dims; } TfLiteReducerParams;
typedef struct { int32_t shape[8]; int num_dimensions; } TfLiteReshapeParams;
typedef struct { bool align_corners, half_pixel_centers; } TfLiteResizeParams;
typedef struct { int seq_dim, batch_dim; } TfLiteReverseSequenceParams;
typedef struct { code activation; bool asymmetric_quantize_inputs; } TfLiteRNNParams;
typedef struct { code out_type; } TfLiteShapeParams;
typedef struct { float beta; } TfLiteSoftmaxParams;
typedef struct { int num_splits; } TfLiteSplitParams;
typedef struct { int32_t squeeze_dims[8]; int num_squeeze_dims; } TfLiteSqueezeParams;
typedef struct {
  int begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask;
  bool offset;
} TfLiteStridedSliceParams;
typedef struct { int rank; code activation; bool asymmetric_quantize_inputs; } TfLiteSVDFParams;
typedef struct {
  code padding;
  int stride_width, stride_height;
  code activation, quantized_bias_type;
} TfLiteTransposeConvParams;
typedef struct {
  code activation;
  float cell_clip, proj_clip;
  bool time_major, asymmetric_quantize_inputs, diagonal_recurrent_tensors;
} TfLiteUnidirectionalSequenceLSTMParams;
typedef struct {
  bool time_major;
  code activation;
  bool asymmetric_quantize_inputs;
} TfLiteSequenceRNNParams;
typedef struct { int num, axis; } TfLiteUnpackParams;
typedef struct { int cond_subgraph_index, body_subgraph_index; } TfLiteWhileParams;
typedef struct { int then_subgraph_index, else_subgraph_index; } TfLiteIfParams;
typedef struct { int init_subgraph_index; } TfLiteCallOnceParams;
typedef struct { const char *container, *shared_name; } TfLiteVarHandleParams;
typedef struct {
  const char *name;
  int32_t subgraph_index;
  const uint8_t *attributes;
  size_t attributes_size;
} TfLiteStablehloCompositeParams;
typedef struct {
  uint32_t branch_subgraph_indices[20];
  uint32_t num_branches;
} TfLiteStablehloCaseParams;
typedef struct {
  int64_t offset_dims[8];
  int num_offset_dims;
  int64_t collapsed_slice_dims[8];
  int num_collapsed_slice_dims;
  int64_t start_index_map[8];
  int num_start_index_map;
  int64_t index_vector_dim;
  int64_t slice_sizes[8];
  int num_slice_sizes;
  bool indices_are_sorted;
} TfLiteStablehloGatherParams;
typedef struct {
  int64_t edge_padding_low[8], edge_padding_high[8], interior_padding[8];
} TfLiteStablehloPadParams;
typedef struct {
  int64_t window_dimensions[8], window_strides[8], base_dilations[8], window_dilations[8];
  int64_t padding[16];
  int body_subgraph_index;
} TfLiteStablehloReduceWindowParams;
typedef struct {
  bool indices_are_sorted;
  int64_t update_window_dims[8];
  int num_update_window_dims;
  int64_t inserted_window_dims[8];
  int num_inserted_window_dims;
  int64_t scatter_dims_to_operand_dims[8];
  int num_scatter_dims_to_operand_dims;
  int64_t index_vector_dim;
  bool unique_indices;
  int update_computation_subgraph_index;
} TfLiteStablehloScatterParams;
