/* A delegate of another maker: it takes every ABS and multiplies its result by the option `scale`.
   The option `fail` makes it refuse, hang or crash where it says. */
#include "abi_structs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT
#endif

enum { ABS = 101 };
typedef struct { int size; int data[]; } Ints;
typedef int (*GetPlan)(TfLiteContext *, Ints **);
typedef int (*GetNode)(TfLiteContext *, int, TfLiteNode **, TfLiteRegistration **);
typedef int (*Replace)(TfLiteContext *, TfLiteRegistration, const Ints *, TfLiteDelegate *);

static TfLiteDelegate the_delegate;
static float scale = 1;
static char fail[16];

static int fails(const char *where) { return strcmp(fail, where) == 0; }
static void crash(void) { *(volatile int *)NULL = 1; }

static int invoke(TfLiteContext *context, TfLiteNode *node) {
  TfLiteTensor *tensors = context->tensors;
  TfLiteTensor *from = tensors + ((Ints *)node->inputs)->data[0];
  TfLiteTensor *to = tensors + ((Ints *)node->outputs)->data[0];
  if (fails("invoke")) crash();
  for (size_t i = 0; i < to->bytes / sizeof(float); i++)
    to->data.f[i] = scale * fabsf(from->data.f[i]);
  return 0;
}

static int prepare(TfLiteContext *context, TfLiteDelegate *delegate) {
  Ints *plan, *taken;
  TfLiteRegistration kernel = {.invoke = (fn)invoke, .custom_name = "Scaler", .version = 1};
  int status;
  if (fails("prepare")) crash();
  if (fails("apply")) return 1;
  if (((GetPlan)context->GetExecutionPlan)(context, &plan)) return 1;
  taken = calloc(1, sizeof(Ints) + plan->size * sizeof(int));
  for (int i = 0; i < plan->size; i++) {
    TfLiteNode *node;
    TfLiteRegistration *of;
    if (((GetNode)context->GetNodeAndRegistration)(context, plan->data[i], &node, &of)) return 1;
    if (of->builtin_code == ABS) taken->data[taken->size++] = plan->data[i];
  }
  status = ((Replace)context->ReplaceNodeSubsetsWithDelegateKernels)(context, kernel, taken, delegate);
  free(taken);
  return status;
}

EXPORT void *tflite_plugin_create_delegate(char **keys, char **values, size_t count,
                                           void (*report)(const char *)) {
  scale = 1;
  fail[0] = 0;
  for (size_t i = 0; i < count; i++) {
    if (strcmp(keys[i], "scale") == 0) scale = (float)atof(values[i]);
    else if (strcmp(keys[i], "fail") == 0) strncpy(fail, values[i], sizeof fail - 1);
    else {
      report("no such option: ");
      report(keys[i]);
      return NULL;
    }
  }
  if (fails("create")) crash();
  if (fails("hang")) for (;;) {}
  if (fails("exit")) {
    fputs("the licence is over\n", stderr);
    exit(5);
  }
  the_delegate.Prepare = (fn)prepare;
  return &the_delegate;
}

EXPORT void tflite_plugin_destroy_delegate(void *delegate) {
  if (!delegate || fails("destroy")) crash();
}
