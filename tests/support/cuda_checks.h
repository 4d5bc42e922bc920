// What the emulator looks for beside wrong numbers, if it is CHECKED (and much slower). The compiler calls these functions for each
// access to memory (-fsanitize=thread, without that sanitizer's own library).
//
// Two threads must not touch the same place, one of them writing something else than is there
// already, unless a barrier of both lies between. Scopes are nested (thread, warp, group of 4 warps, block, cluster), and each barrier
// is one for all smaller scopes within: so whether there was one is told by counting, for each
// thread and scope, the barriers that it has passed. An access must lie inside the buffers of the
// launch or the arrays of the block.
#pragma once
#ifndef CHECKED
#define CHECKED 0
#endif
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// What launches kernels is compiled once, with LAUNCHES, and linked with all of them: it takes longer than most kernels.
#ifdef LAUNCHES
#define SHARED
#else
#define SHARED extern
#endif
#define UNCHECKED __attribute__((no_sanitize("thread"), optimize("O2")))

enum Scope { THREAD, WARP, GROUP, BLOCK, CLUSTER, SCOPES };
// How many barriers were passed, of each scope.
struct Passed { unsigned short of[SCOPES] = {}; };
// A thread of a cluster, the scopes that it is in, and how many barriers it has passed in each.
// `fences`: after which the instructions that multiply from shared memory see what it has written.
struct Visitor { unsigned short place[SCOPES], passed[SCOPES]; unsigned int fences; };
// The last visit; `spread` is the smallest scope that holds all who have come since a barrier.
struct Visit { unsigned int run; unsigned short thread, passed[SCOPES - 1]; unsigned char spread; unsigned int fences; };
struct Cell { Visit written, read; };
static_assert(sizeof(Cell) == 40, "emulated_memory.py makes room for them");
struct Range { const char *begin, *end; bool writable; };

static const int MAX_RANGES = 64, MAX_BLOCKS = 16;
// A place that is written once more, without a barrier: all is well if what was there stays.
struct Rewrite { const char *place; int size; char before[16]; };
static const int MAX_REWRITES = 1 << 12;

struct Checks {
    const Visitor *visitor;        // nobody, while what the program does is no access of its own
    const Visitor *visitors;       // all of a cluster
    Range buffers[MAX_RANGES], regions[2], arrays[MAX_RANGES];  // arrays: offsets in a block's memory
    int buffer_count, array_count, block_count;
    Cell *arena_cells;             // of the first region
    char *shared;                  // the memory of the blocks of a cluster, with a guard after each, and before
    size_t block_bytes;            // from one to the next
    bool gone[MAX_BLOCKS];
    unsigned short wanted[MAX_BLOCKS];  // barriers before which a block must not end
    Cell *shared_cells;
    Rewrite rewrites[MAX_REWRITES];
    int rewrite_count;
    unsigned int run, first_run;   // of clusters: now, and the first one of this launch
    char fault[300];
};
SHARED Checks checks;

void yield();

// Ends the launch: the thread never goes on.
void fault(const char *what, const char *kind, long place);
// What an instruction accesses of shared memory and of no other: this is checked on all devices.
void touch_shared(const void *place, int size, bool writes);
void touch(const void *place, int size, bool writes);
// Read by instructions that do not see what threads write before these fence it.
void touch_fenced(const void *place, int size);
// A copy has come there.
void landed(const void *place, int size);

// Bytes after the memory of each block, and before the first, that nobody may touch. They read as NaN.
static const long GUARD = 1 << 15;

#ifdef LAUNCHES
static int my_number();  // of a thread, in its cluster

UNCHECKED void fault(const char *what, const char *kind, long place) {
    snprintf(checks.fault, sizeof checks.fault, "%s: byte %ld of %s, thread %d", what, place, kind, my_number());
    yield();
}
// The smallest scope that holds both.
UNCHECKED static int common(const Visitor &v, const Visit &last) {
    const Visitor &other = checks.visitors[last.thread];
    int scope = THREAD;
    while (scope < CLUSTER && v.place[scope] != other.place[scope]) ++scope;
    return scope > last.spread ? scope : last.spread;
}
UNCHECKED static bool has_passed(const Visitor &v, const Visit &last, int scope) {
    return scope == THREAD || v.passed[scope] > last.passed[scope - 1];
}
UNCHECKED static bool unordered(const Visitor &v, const Visit &last) {
    return last.run != checks.run || !has_passed(v, last, common(v, last));
}
UNCHECKED static void note(const Visitor &v, Visit &last) {
    if (last.run != checks.run) last.spread = THREAD;
    else if (last.thread != v.place[THREAD] || last.spread) {
        const int scope = common(v, last);
        last.spread = has_passed(v, last, scope) ? THREAD : scope;
    }
    last.run = checks.run;
    last.thread = v.place[THREAD];
    last.fences = v.fences;
    for (int s = WARP; s < SCOPES; ++s) last.passed[s - 1] = v.passed[s];
}
// Words of 4 bytes have a cell, and another one for their upper half, if that is all of an access.
UNCHECKED static void visit(Cell *cells, size_t start, int size, bool writes, bool global, const char *kind, const char *place) {
    const Visitor &v = *checks.visitor;
    const unsigned int since = global ? checks.first_run : checks.run;
    Cell *cell = cells + start / 4 * 2 + start / 2 % 2;
    bool again = false;
    for (Cell *const end = cell + (size + 3) / 4 * 2; cell < end; cell += 2) {
        if (cell->written.run >= since && unordered(v, cell->written)) {
            if (!writes) fault("no barrier since another thread wrote", kind, start);
            else again = true;
        }
        if (writes && cell->read.run >= since && unordered(v, cell->read))
            fault("no barrier since another thread read", kind, start);
        note(v, writes ? cell->written : cell->read);
    }
    if (!again || checks.rewrite_count == MAX_REWRITES) return;
    Rewrite &noted = checks.rewrites[checks.rewrite_count++];
    noted.place = place;
    noted.size = size;
    for (int i = 0; i < size; ++i) noted.before[i] = place[i];
}
// Called before another thread goes on. Not sooner: the compiler may write later than it says.
UNCHECKED static void finish_rewrites() {
    const int count = checks.rewrite_count;
    checks.rewrite_count = 0;
    for (int r = 0; r < count; ++r) {
        const Rewrite &noted = checks.rewrites[r];
        for (int i = 0; i < noted.size; ++i)
            if (noted.place[i] != noted.before[i])
                return fault("two threads write different things, no barrier in between", "memory, modulo 256", (size_t)noted.place % 256);
    }
}
UNCHECKED static bool found(const Range *ranges, int count, const char *p, int size, bool writes) {
    for (int i = 0; i < count; ++i)
        if (p >= ranges[i].begin && p + size <= ranges[i].end && (ranges[i].writable || !writes)) return true;
    return false;
}
// A place in the memory of a block of the cluster, or in the guards.
struct SharedPlace { int block; long at; };
UNCHECKED static bool is_shared(const char *p) {
    return p >= checks.shared - GUARD && p < checks.shared + checks.block_count * checks.block_bytes;
}
UNCHECKED static SharedPlace shared_place(const char *p) {
    const int block = p < checks.shared ? 0 : (int)((p - checks.shared) / checks.block_bytes);
    return {block, p - checks.shared - block * (long)checks.block_bytes};
}
UNCHECKED static bool in_arrays(long at, int size, bool writes) {
    return at >= 0 && found(checks.arrays, checks.array_count, (const char *)at, size, writes);
}
UNCHECKED void touch_shared(const void *place, int size, bool writes) {
    if (!checks.shared) return;
    const char *const p = (const char *)place;
    if (!is_shared(p)) return fault("no shared memory", "memory, modulo 256", (long)((size_t)p % 256));
    const SharedPlace found = shared_place(p);
    if (found.at % size) return fault("not aligned", "shared memory", found.at);
    if (!in_arrays(found.at, size, writes)) fault("outside of all arrays", "shared memory", found.at);
}
UNCHECKED void touch(const void *place, int size, bool writes) {
    if (!checks.visitor) return;
    const char *const p = (const char *)place;
    if (is_shared(p)) {
        const SharedPlace here = shared_place(p);
        const long at = here.at;
        const int block = here.block;
        if (at % size) return fault("not aligned", "shared memory", at);
        if (!in_arrays(at, size, writes)) return fault("outside of all arrays", "shared memory", at);
        const unsigned short passed = checks.visitor->passed[CLUSTER];
        if (block != checks.visitor->place[BLOCK]) {
            if (!passed) return fault("its block may not have begun", "shared memory", at);
            if (checks.wanted[block] <= passed) checks.wanted[block] = passed + 1;
        }
        if (checks.gone[block]) return fault("its block has ended", "shared memory", at);
        return visit(checks.shared_cells + (p - checks.shared - at) / 2, at, size, writes, false, "shared memory", p);
    }
    for (int r = 0; r < 2; ++r) {
        const Range &region = checks.regions[r];
        if (p < region.begin || p >= region.end) continue;
        const char *const kind = r ? "the constants" : "device memory";
        const size_t at = p - region.begin;
        if (at % size) return fault("not aligned", kind, at);
        if (!found(checks.buffers, checks.buffer_count, p, size, writes))
            return fault(writes ? "written, outside of the launch's buffers" : "read, outside of the launch's buffers", kind, at);
        if (r == 0) visit(checks.arena_cells, at, size, writes, true, kind, p);
        return;
    }
}

// Written shared memory, as it is when a copy has come.
UNCHECKED static Visit *written_at(const void *place) {
    const size_t at = (const char *)place - checks.shared;
    return checks.visitor && at < checks.block_count * checks.block_bytes ? &checks.shared_cells[at / 4 * 2].written : nullptr;
}
UNCHECKED void landed(const void *place, int size) {
    for (int i = 0; i < size; i += 4)
        if (Visit *const last = written_at((const char *)place + i)) last->fences = checks.visitor->fences;
}
UNCHECKED void touch_fenced(const void *place, int size) {
    touch(place, size, false);
    for (int i = 0; i < size && !checks.fault[0]; i += 4) {
        const Visit *const last = written_at((const char *)place + i);
        if (last && last->run == checks.run && checks.visitors[last->thread].fences <= last->fences)
            fault("no fence since a thread wrote", "shared memory", ((const char *)place - checks.shared) % checks.block_bytes);
    }
}

UNCHECKED static void end_visit() {
    const int block = checks.visitor->place[BLOCK];
    if (checks.visitor->passed[CLUSTER] < checks.wanted[block]) fault("another block may still use it", "the memory of block", block);
}

extern "C" {
#define ACCESS(size) \
    UNCHECKED void __tsan_read##size(void *p) { touch(p, size, false); } \
    UNCHECKED void __tsan_write##size(void *p) { touch(p, size, true); } \
    UNCHECKED void __tsan_unaligned_read##size(void *p) { touch(p, size, false); } \
    UNCHECKED void __tsan_unaligned_write##size(void *p) { touch(p, size, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
UNCHECKED void __tsan_read_range(void *p, size_t size) { touch(p, (int)size, false); }
UNCHECKED void __tsan_write_range(void *p, size_t size) { touch(p, (int)size, true); }
UNCHECKED void __ubsan_handle_out_of_bounds(void *, void *index) { fault("outside of an array", "elements", (size_t)index); }
UNCHECKED void __ubsan_handle_out_of_bounds_abort(void *, void *index) { __ubsan_handle_out_of_bounds(0, index); }
UNCHECKED void __tsan_init() {}
UNCHECKED void __tsan_func_entry(void *) {}
UNCHECKED void __tsan_func_exit() {}
UNCHECKED void __tsan_vptr_update(void *, void *) {}
}
#endif
