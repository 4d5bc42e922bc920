/* A program without Python that runs a model by LiteRT's C interface, with a delegate of a shared
   library: `host LIBRARY_OF_LITERT DELEGATE MODEL SCENARIO [KEY=VALUE ...]`. The model has one input
   of 1x9x7x3 floats. It prints the sum of the outputs, and what the scenario is about. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GPU = 2, FLOAT32 = 1, HOST_MEMORY = 1, READ = 0, WRITE = 1, VALUES = 9 * 7 * 3 };

typedef struct { unsigned rank : 7, has_strides : 1; int32_t dims[8]; uint32_t strides[8]; } Layout;
typedef struct { int type; Layout layout; } Type;
typedef struct { int major, minor, patch; } Version;
typedef struct { void *environment, *model, *compiled, *in, *out; size_t count; } Runner;
typedef void (*Report)(const char *);

static void *litert;
static void *(*create)(const char *const *, const char *const *, size_t, Report);
static void (*destroy)(void *);
static const char *keys[32], *values[32];
static size_t option_count;
static void *given; /* the delegate to use; NULL: a new one */

#define CALL(name, ...) check(#name, ((int (*)())dlsym(litert, #name))(__VA_ARGS__))

static void check(const char *name, int status) {
  if (!status) return;
  printf("%s fails with %d\n", name, status);
  exit(3);
}

static void report(const char *text) { printf("reported: %s\n", text); }

static int get_name(void *accelerator, const char **name) { return *name = "external", 0; }
static int get_version(void *accelerator, Version *version) {
  return *version = (Version){1, 0, 0}, 0;
}
static int get_hardware(void *accelerator, int *hardware) { return *hardware = GPU, 0; }
static void keep(void *delegate) {}

static int create_delegate(void *runtime, void *environment, void *accelerator, void *options,
                           void **wrapper) {
  void *delegate = given ? given : create(keys, values, option_count, report);
  if (!delegate) return 1;
  CALL(LiteRtWrapDelegate, delegate, given ? keep : destroy, wrapper);
  return 0;
}

static Runner open_model(const char *path) {
  Runner r = {0};
  void *accelerator, *options;
  Layout layout;
  CALL(LiteRtCreateEnvironment, 0, NULL, &r.environment);
  CALL(LiteRtCreateAccelerator, &accelerator);
  CALL(LiteRtSetAcceleratorGetName, accelerator, get_name);
  CALL(LiteRtSetAcceleratorGetVersion, accelerator, get_version);
  CALL(LiteRtSetAcceleratorGetHardwareSupport, accelerator, get_hardware);
  CALL(LiteRtSetDelegateFunction, accelerator, create_delegate);
  CALL(LiteRtRegisterAccelerator, r.environment, accelerator, NULL, NULL);
  CALL(LiteRtCreateModelFromFile, r.environment, path, &r.model);
  CALL(LiteRtCreateOptions, &options);
  CALL(LiteRtSetOptionsHardwareAccelerators, options, GPU);
  CALL(LiteRtCreateCompiledModel, r.environment, r.model, options, &r.compiled);
  Type type = {FLOAT32, {4, 0, {1, 9, 7, 3}}};
  CALL(LiteRtCreateManagedTensorBuffer, r.environment, HOST_MEMORY, &type,
       (size_t)VALUES * sizeof(float), &r.in);
  CALL(LiteRtGetCompiledModelOutputTensorLayouts, r.compiled, (size_t)0, (size_t)1, &layout, false);
  type.layout = layout;
  r.count = 1;
  for (unsigned i = 0; i < layout.rank; i++) r.count *= layout.dims[i];
  CALL(LiteRtCreateManagedTensorBuffer, r.environment, HOST_MEMORY, &type,
       r.count * sizeof(float), &r.out);
  return r;
}

static int try_run(Runner *r) {
  int (*run)() = (int (*)())dlsym(litert, "LiteRtRunCompiledModel");
  return run(r->compiled, (size_t)0, (size_t)1, &r->in, (size_t)1, &r->out);
}

static double sum(Runner *r) {
  float *data;
  double total = 0;
  CALL(LiteRtLockTensorBuffer, r->in, &data, WRITE);
  for (int i = 0; i < VALUES; i++) data[i] = (float)(i % 17) / 17;
  CALL(LiteRtUnlockTensorBuffer, r->in);
  check("invoke", try_run(r));
  CALL(LiteRtLockTensorBuffer, r->out, &data, READ);
  for (size_t i = 0; i < r->count; i++) total += data[i] * (double)(i % 5 + 1);
  CALL(LiteRtUnlockTensorBuffer, r->out);
  return total;
}

static void close_model(Runner *r) {
  CALL(LiteRtDestroyTensorBuffer, r->in);
  CALL(LiteRtDestroyTensorBuffer, r->out);
  ((void (*)())dlsym(litert, "LiteRtDestroyCompiledModel"))(r->compiled);
  ((void (*)())dlsym(litert, "LiteRtDestroyModel"))(r->model);
  ((void (*)())dlsym(litert, "LiteRtDestroyEnvironment"))(r->environment);
}

static volatile sig_atomic_t interrupts;
static void on_interrupt(int number) { interrupts++; }
static void interrupt(int number) { raise(SIGINT); }

static void *create_here(void *unused) {
  return given = create(keys, values, option_count, report);
}

static void *run_here(void *path) {
  Runner r = open_model(path);
  printf("sum %.3f\n", sum(&r));
  close_model(&r);
  return NULL;
}

static void in_thread(void *(*work)(void *), void *argument) {
  pthread_t thread;
  pthread_create(&thread, NULL, work, argument);
  pthread_join(thread, NULL);
}

int main(int count, char **words) {
  const char *model = words[3], *scenario = words[4];
  struct sigaction before[32], after;
  void *library;
  setvbuf(stdout, NULL, _IOLBF, 0);
  litert = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  library = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
  if (!litert || !library) return printf("%s\n", dlerror()), 2;
  create = (void *(*)(const char *const *, const char *const *, size_t, Report))dlsym(
      library, "tflite_plugin_create_delegate");
  destroy = (void (*)(void *))dlsym(library, "tflite_plugin_destroy_delegate");
  for (int i = 5; i < count; i++) {
    keys[option_count] = strtok(words[i], "=");
    values[option_count++] = strtok(NULL, "");
  }
  signal(SIGINT, on_interrupt);
  for (int i = 1; i < 32; i++) sigaction(i, NULL, &before[i]);

  if (strcmp(scenario, "refused") == 0) {
    printf("created: %d\n", create(keys, values, option_count, report) != NULL);
    printf("created: %d\n", create(keys, values, option_count, NULL) != NULL);
    destroy(NULL);
  } else if (strcmp(scenario, "delegates") == 0) {
    /* Two threads start Python at the same time, each for a delegate and a model of its own. */
    pthread_t both[2];
    for (int i = 0; i < 2; i++) pthread_create(&both[i], NULL, run_here, (void *)model);
    for (int i = 0; i < 2; i++) pthread_join(both[i], NULL);
    /* The delegate of a thread that has ended is used by another one, and for two models. */
    in_thread(create_here, NULL);
    in_thread(run_here, (void *)model);
    run_here((void *)model);
    destroy(given);
    destroy(given);
    /* A delegate goes before its model. */
    create_here(NULL);
    Runner r = open_model(model);
    printf("sum %.3f\n", sum(&r));
    destroy(given);
    printf("invoke fails: %d\n", try_run(&r) != 0);
    close_model(&r);
    /* The library stays in the process: threads of its delegates run there. */
    given = NULL;
    dlclose(library);
    run_here((void *)model);
  } else if (strcmp(scenario, "fork") == 0) {
    Runner r = open_model(model);
    printf("sum %.3f\n", sum(&r));
    int status;
    if (!fork()) {
      printf("child's invoke fails: %d\n", try_run(&r) != 0);
      printf("created: %d\n", create(keys, values, option_count, report) != NULL);
      exit(7);
    }
    wait(&status);
    printf("child's status %d\n", WEXITSTATUS(status));
    printf("sum %.3f\n", sum(&r));
    exit(5); /* nothing is closed */
  } else if (strcmp(scenario, "signals") == 0) {
    Runner r = open_model(model);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, interrupt);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 20 || interrupts < 20; i++) sum(&r);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("sum %.3f\n", sum(&r));
    signal(SIGALRM, SIG_DFL);
    for (int i = 1; i < 32; i++) {
      sigaction(i, NULL, &after);
      if (after.sa_handler != before[i].sa_handler) printf("signal %d was taken\n", i);
    }
    printf("locale %s\n", setlocale(LC_CTYPE, NULL));
    close_model(&r);
  } else {
    return 2;
  }
  return 0;
}
