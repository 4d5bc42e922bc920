/* An external delegate of TensorFlow Lite whose work is done by litegpu, in Python.

   `litegpu build-delegate` puts three definitions before this text: PYTHON_VERSION ("3.11"), and
   `executable` and `library`, the paths of the Python that has litegpu and of its shared library
   (empty if it has none). No header of Python is needed: its functions are found at run time, in
   the Python that runs in the process, or else in `library`. */
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define EXPORT __declspec(dllexport)
static SRWLOCK lock = SRWLOCK_INIT;
static void acquire(void) { AcquireSRWLockExclusive(&lock); }
static void release(void) { ReleaseSRWLockExclusive(&lock); }
#else
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#define EXPORT __attribute__((visibility("default")))
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void acquire(void) { pthread_mutex_lock(&lock); }
static void release(void) { pthread_mutex_unlock(&lock); }
#endif

typedef void (*Report)(const char *);

/* What plugin.py fills in; its `Plugin` has the same fields. */
static struct {
  void *(*create)(const char *const *, const char *const *, size_t, Report);
  void (*destroy)(void *);
  void (*end)(void);
  int apis;    /* the number of GPU APIs that were opened */
  int forking; /* Python itself forks the process */
  char error[1024];
} plugin;

/* Functions of Python. */
static struct {
  int (*is_initialized)(void);
  const char *(*version)(void);
  void (*set_program)(const wchar_t *);
  void (*initialize)(int);
  void *(*save_thread)(void);
  int (*is_finalizing)(void);
  int (*acquire_gil)(void);
  void (*release_gil)(int);
  int (*has_gil)(void);
  int (*run)(const char *, void *);
  void *(*thread)(void);
  void *(*interpreter_of)(void *);
  void *(*main_interpreter)(void);
  void (*before_fork)(void);
  void (*after_fork_in_parent)(void);
  void (*after_fork_in_child)(void);
} py;

static int started; /* this library has started Python */
static int ready;   /* Python has run at some time */

static void fail(Report report, const char *format, ...) {
  char text[2048];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  if (report) report(text);
}

/* Finding Python's functions. */

#ifdef _WIN32
static HMODULE python;
static void *find(const char *name) { return (void *)GetProcAddress(python, name); }

/* Return whether the process has a Python. */
static int has_python(void) {
  char name[32];
  int minor;
  if (python) return 1;
  for (minor = 8; !python && minor < 40; minor++) {
    snprintf(name, sizeof name, "python3%d.dll", minor);
    python = GetModuleHandleA(name);
  }
  return python != NULL;
}

static int load_python(Report report) {
  python = LoadLibraryExW(library, NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
  if (python) return 1;
  fail(report, "litegpu cannot load Python's library (error %lu). Run `litegpu build-delegate` "
               "again.", GetLastError());
  return 0;
}

static int is_missing(const wchar_t *path) {
  return GetFileAttributesW(path) == INVALID_FILE_ATTRIBUTES;
}

/* Keep this library in the process: exit handlers and Python need it. */
static void stay_loaded(void) {
  HMODULE self;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                     (LPCWSTR)&plugin, &self);
}
#else
static void *python;
static void *find(const char *name) { return dlsym(python ? python : RTLD_DEFAULT, name); }

static int has_python(void) {
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) return 1;
  /* A program may have loaded it for itself; packages such as NumPy look for it in all. */
  if (library[0]) python = dlopen(library, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  return python != NULL;
}

static int load_python(Report report) {
  python = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (python) return 1;
  fail(report, "litegpu cannot load Python's library: %s. Run `litegpu build-delegate` again.",
       dlerror());
  return 0;
}

static int is_missing(const char *path) { return access(path, X_OK); }

static void stay_loaded(void) {
  Dl_info self;
  if (dladdr(&plugin, &self)) dlopen(self.dli_fname, RTLD_NOW | RTLD_NODELETE);
}
#endif

static void print(const char *text) { fprintf(stderr, "%s\n", text); }

/* A thread of a subinterpreter must not wait for the main interpreter: it may hold its lock. */
static int in_subinterpreter(void) {
  void *thread = py.thread();
  return thread && py.interpreter_of(thread) != py.main_interpreter();
}

/* Whether Python functions that C calls, such as `report`, hang in subinterpreters. */
static int is_before_3_12(void) {
  return !strncmp(py.version(), "3.10", 4) || !strncmp(py.version(), "3.11", 4);
}

static int find_functions(Report report) {
  static const struct {
    const char *name, *other; /* `other` is its name in older or newer versions */
    void *place;
  } all[] = {
      {"Py_IsInitialized", NULL, &py.is_initialized},
      {"Py_GetVersion", NULL, &py.version},
      {"Py_SetProgramName", NULL, &py.set_program},
      {"Py_InitializeEx", NULL, &py.initialize},
      {"PyEval_SaveThread", NULL, &py.save_thread},
      {"Py_IsFinalizing", "_Py_IsFinalizing", &py.is_finalizing},
      {"PyGILState_Ensure", NULL, &py.acquire_gil},
      {"PyGILState_Release", NULL, &py.release_gil},
      {"PyGILState_Check", NULL, &py.has_gil},
      {"PyRun_SimpleStringFlags", NULL, &py.run},
      {"PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet", &py.thread},
      {"PyThreadState_GetInterpreter", NULL, &py.interpreter_of},
      {"PyInterpreterState_Main", NULL, &py.main_interpreter},
#ifndef _WIN32
      {"PyOS_BeforeFork", NULL, &py.before_fork},
      {"PyOS_AfterFork_Parent", NULL, &py.after_fork_in_parent},
      {"PyOS_AfterFork_Child", NULL, &py.after_fork_in_child},
#endif
  };
  size_t i, length = strlen(PYTHON_VERSION);
  for (i = 0; i < sizeof all / sizeof all[0]; i++) {
    void *found = find(all[i].name);
    if (!found && all[i].other) found = find(all[i].other);
    if (!found) {
      fail(report, "The Python of this process has no %s: litegpu's delegate was built for Python "
                   PYTHON_VERSION ". Run `litegpu build-delegate` with the Python of this program.",
           all[i].name);
      return 0;
    }
    memcpy(all[i].place, &found, sizeof found);
  }
  if (in_subinterpreter()) {
    fail(is_before_3_12() ? print : report,
         "litegpu's delegate cannot be used in a subinterpreter of Python. Create it in the main "
         "interpreter, or in another process.");
    return 0;
  }
  if (strncmp(py.version(), PYTHON_VERSION, length) == 0 && py.version()[length] == '.') return 1;
  fail(report, "litegpu's delegate was built for Python " PYTHON_VERSION ", but this process has "
               "Python %.*s. Run `litegpu build-delegate` with the Python of this program.",
       (int)strcspn(py.version(), " "), py.version());
  return 0;
}

/* The process forks, and ends. */

#ifndef _WIN32
static int nested, gil; /* the GIL is held from `before_fork` on */

static void before_fork(void) {
  nested = plugin.forking;
  if (nested) return;
  gil = py.acquire_gil();
  py.before_fork();
}

static void after_fork_in_parent(void) {
  if (nested) return;
  py.after_fork_in_parent();
  py.release_gil(gil);
}

static void after_fork_in_child(void) {
  if (nested) return;
  py.after_fork_in_child();
  py.release_gil(gil);
}
#endif

/* Release what Python's own end would, before the exit handlers of drivers. */
static void end(void) {
  static int ended;
  if (ended || py.has_gil()) return; /* a signal handler ends the process in the middle of Python */
  ended = 1;
  plugin.end();
}

/* Starting Python. */

static void set(const char *flag, int value) {
  int *found = (int *)find(flag);
  if (found) *found = value;
}

static int start_python(Report report) {
  char *locale;
  if (ready) {
    fail(report, "Python has ended in this process. Create the delegate before that.");
    return 0;
  }
  if (!library[0]) {
    fail(report, "The Python that built litegpu's delegate has no shared library, so that only "
                 "Python programs can load the delegate. Install a Python with one (libpython"
                 PYTHON_VERSION "), and run `litegpu build-delegate` with it.");
    return 0;
  }
  if (is_missing(python_file)) {
    fail(report, "litegpu's delegate finds its Python no more: its environment was moved or "
                 "deleted. Run `litegpu build-delegate` again.");
    return 0;
  }
  if (!has_python() && !load_python(report)) return 0;
  if (!find_functions(report)) return 0;
  set("Py_IgnoreEnvironmentFlag", 1); /* PYTHONHOME and others are for another Python */
  set("Py_NoUserSiteDirectory", 1);
  set("Py_UTF8Mode", 1);
  py.set_program(executable);
  locale = setlocale(LC_CTYPE, NULL);
  locale = locale ? strcpy(malloc(strlen(locale) + 1), locale) : NULL;
  py.initialize(0); /* without signal handlers: they are the program's */
  if (locale) setlocale(LC_CTYPE, locale);
  free(locale);
  py.save_thread();
#ifndef _WIN32
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
#endif
  started = 1;
  return 1;
}

/* Return whether Python runs, after it was started if it did not. */
static int has_running_python(Report report) {
  static int starting;
  int runs;
  if (!starting && has_python() && find("Py_IsInitialized") &&
      ((int (*)(void))find("Py_IsInitialized"))())
    return find_functions(report);
  acquire();
  starting = 1;
  runs = started || start_python(report);
  starting = 0;
  release();
  return runs;
}

static int load_litegpu(Report report) {
  static const char code[] =
      "exec('''\n"
      "import ctypes, sys\n"
      "try:\n"
      "    from litegpu.tools.build_delegate.plugin import connect\n"
      "    connect(%llu, %llu)\n"
      "except BaseException as error:\n"
      "    text = f\"litegpu cannot be used in the Python of this process, {sys.executable}: \"\n"
      "    text += str(error) or type(error).__name__\n"
      "    if isinstance(error, ImportError):\n"
      "        text += \". Install it there: pip install litegpu\"\n"
      "    ctypes.memmove(%llu, text.encode()[:%d] + bytes(1), len(text.encode()[:%d]) + 1)\n"
      "''', {})\n";
  char text[sizeof code + 100];
  int size = (int)sizeof plugin.error - 1, held, status;
  ready = 1;
  if (plugin.create) return 1;
  stay_loaded();
  snprintf(text, sizeof text, code, (unsigned long long)(size_t)&plugin,
           (unsigned long long)sizeof plugin, (unsigned long long)(size_t)plugin.error, size, size);
  held = py.acquire_gil();
  plugin.error[0] = 0;
  status = py.run(text, NULL);
  py.release_gil(held);
  if (!status && plugin.create) return 1;
  fail(report, "%s", plugin.error[0] ? plugin.error : "Python fails to start litegpu: see stderr.");
  return 0;
}

EXPORT void *tflite_plugin_create_delegate(const char *const *keys, const char *const *values,
                                           size_t count, Report report) {
  static int apis;
  void *delegate;
  if (!has_running_python(report) || !load_litegpu(report)) return NULL;
  delegate = plugin.create(keys, values, count, report);
  if (started && apis < plugin.apis) { /* drivers have added exit handlers, which run later */
    apis = plugin.apis;
    atexit(end);
  }
  return delegate;
}

EXPORT void tflite_plugin_destroy_delegate(void *delegate) {
  if (delegate && plugin.destroy && py.is_initialized() && !py.is_finalizing() &&
      !in_subinterpreter())
    plugin.destroy(delegate);
}
