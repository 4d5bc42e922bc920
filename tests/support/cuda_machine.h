// The GPU that runs kernels (cuda_emulator.h): fibers, barriers, instructions, and the launch.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

// Fibers

struct Copy { void *to; uint4 value; };
struct Fiber : Self {
    int rank, warp;
    Visitor *visitor;
    void *stack_pointer;
    char *stack;
    bool done;
    // What the lanes of a warp show each other
    const void *row;
    unsigned int *matrix;
    const unsigned int *a;
    unsigned int b0, b1;
    float *d;
    int *whole;
    unsigned int word;
    int from;
    const Product *shown;
    std::vector<std::vector<Copy>> copies;
    std::vector<std::vector<Product>> products;
};
// The most barriers that those who have come had passed, of each scope: whoever goes on has passed one more.
struct Meeting { int arrived = 0; unsigned int round = 0; Passed come, gone; };
struct Gate { int wanted, missing; unsigned int round; Passed come, gone; };
struct Inbox { int missing = 0; bool told = false; Passed come; };  // bytes
struct Block {
    char *memory;
    Meeting all, some[16];           // barriers by their numbers
    int votes[16] = {}, voted[16] = {};  // see __syncthreads_or
    int ended = 0;                   // threads
    std::map<const void *, Gate> gates;
    std::map<const void *, Inbox> inboxes;
    std::vector<Meeting> warps, groups;
};static std::vector<Fiber> fibers;
static std::vector<Block> blocks;
static std::vector<char> memory;
static std::vector<Visitor> visitors;
static const unsigned long long BARRIER_HERE = 0xba441e4ba441e4ull;
static Meeting cluster_meeting;
static Fiber *me;
static int threads_per_block;
static unsigned long moves;  // arrivals at meetings, and ends

// Wait for `count` fibers; the last one does the work of all, and is looked at for all.
template <class Work> static void meet(Meeting &meeting, int count, Work work) {
    const unsigned int round = meeting.round;
    ++moves;
    if (++meeting.arrived == count) {
        work();
        meeting.arrived = 0;
        ++meeting.round;
        return;
    }
    while (meeting.round == round) yield();
}

// What was done before by those who have come is before all that this thread does from now on.
static void go_on(Scope scope, const Passed &gone) {
    for (int s = scope; s > THREAD; --s) me->visitor->passed[s] = std::max(me->visitor->passed[s], gone.of[s]) + 1;
}
static void come(Scope scope, Passed &all) {
    for (int s = scope; s > THREAD; --s) all.of[s] = std::max(all.of[s], me->visitor->passed[s]);
}
// A meeting that orders accesses to memory, too.
template <class Work> static void barrier(Scope scope, Meeting &meeting, int count, Work work) {
    come(scope, meeting.come);
    meet(meeting, count, [&] { work(), meeting.gone = meeting.come, meeting.come = Passed(); });
    go_on(scope, meeting.gone);
}

static Block &my_block() { return blocks[me->rank]; }
static Fiber *warp_of(const Fiber *f) { return &fibers[f->rank * threads_per_block + f->warp * 32]; }
char *shared_memory(size_t offset) { return my_block().memory + offset; }
void __syncthreads() { barrier(BLOCK, my_block().all, threads_per_block, [] {}); }
static int vote(int number, Meeting &meeting, int threads, int vote) {
    Block &b = my_block();
    b.votes[number] |= vote != 0;
    barrier(BLOCK, meeting, threads, [&] { b.voted[number] = b.votes[number], b.votes[number] = 0; });
    return b.voted[number];
}
int __syncthreads_or(int own) { return vote(0, my_block().all, threads_per_block, own); }
int some_threads_or(int number, int threads, int own) {
    return vote(number, my_block().some[number], threads, own);
}
template <class Join> static unsigned int of_warp(unsigned int v, Join join) {
    me->word = v;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        unsigned int all = 0;
        for (int lane = 0; lane < 32; ++lane) all = join(all, lanes[lane].word);
        for (int lane = 0; lane < 32; ++lane) lanes[lane].word = all;
    });
    return me->word;
}
unsigned int __reduce_max_sync(unsigned int, unsigned int v) {
    return of_warp(v, [](unsigned int a, unsigned int b) { return a > b ? a : b; });
}
unsigned int __reduce_or_sync(unsigned int, unsigned int v) {
    return of_warp(v, [](unsigned int a, unsigned int b) { return a | b; });
}
unsigned int exchanged(unsigned int word, int from) {
    me->word = word;
    me->from = from;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        unsigned int words[32];
        for (int lane = 0; lane < 32; ++lane) words[lane] = lanes[lane].word;
        for (int lane = 0; lane < 32; ++lane) lanes[lane].word = words[lanes[lane].from];
    });
    return me->word;
}
void __syncwarp() { barrier(WARP, my_block().warps[me->warp], 32, [] {}); }
// Gates count what was passed as barriers do; that a thread waits for another is told by which has passed
// more, so that of those who never met some races are not seen.
// A gate or an inbox takes up the memory where it lies: nothing else may be written there.
UNCHECKED static void barrier_begin(unsigned long long *place) {
    touch_shared(place, sizeof *place, true);
    *place = BARRIER_HERE;
}
UNCHECKED static void barrier_used(const unsigned long long *place) {
    if (*place != BARRIER_HERE) fault("a barrier is overwritten", "shared memory", (const char *)place - my_block().memory);
}
void gate_begin(unsigned long long *gate, int arrivals) {
    barrier_begin(gate);
    my_block().gates[gate] = {arrivals, arrivals, 0};
}
void gate_arrive(unsigned long long *gate) {
    barrier_used(gate);
    __syncwarp();
    ++moves;
    Gate &g = my_block().gates.at(gate);
    if (me->lane == 0) {
        come(BLOCK, g.come);
        if (--g.missing == 0) g.gone = g.come, g.come = Passed(), g.missing = g.wanted, ++g.round;
    }
    go_on(BLOCK, Passed());  // what it does from now on is not before what others do
}
void gate_wait(unsigned long long *gate, int odd) {
    barrier_used(gate);
    const Gate &g = my_block().gates.at(gate);
    while ((int)(g.round & 1) == odd) yield();
    ++moves;
    go_on(BLOCK, g.gone);
}
// The instructions

// Lane l of a warp gets two halves of each of four matrices of 8 x 8, from the rows that the lanes
// name: place(l, e) are the row and the byte in it of half e.
template <typename Place> static void load_halves(unsigned int (&a)[4], const void *row, Place place) {
    touch_shared(row, 16, false);
    me->row = row;
    me->matrix = a;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int e = 0; e < 2; ++e) {
                    const auto [from, byte] = place(lane, e);
                    memcpy((char *)&lanes[lane].matrix[q] + e * 2,
                           (const char *)lanes[8 * q + from].row + byte, 2);
                }
    });
}
void load_matrix(unsigned int (&a)[4], const void *row) {
    load_halves(a, row, [](int lane, int e) { return std::pair(lane / 4, lane % 4 * 4 + e * 2); });
}
void load_matrix_turned(unsigned int (&a)[4], const void *row) {
    load_halves(a, row, [](int lane, int e) { return std::pair(lane % 4 * 2 + e, lane / 4 * 2); });
}
template <int K> static void add_products(Fiber *lanes, const float (&left)[16][K], const float (&right)[K][8]) {
    for (int lane = 0; lane < 32; ++lane) {
        float *const d = lanes[lane].d;
        for (int q = 0; q < 4; ++q) {
            float sum = d[q];
            for (int k = 0; k < K; ++k) sum += left[lane / 4 + q / 2 * 8][k] * right[k][lane % 4 * 2 + q % 2];
            d[q] = sum;
        }
    }
}
static float half_at(unsigned int pair, int which) { return from_half(pair >> (16 * which) & 0xffff); }
void multiply(float (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    me->d = d, me->a = a, me->b0 = b0, me->b1 = b1;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int e = 0; e < 2; ++e) {
                    left[lane / 4 + q % 2 * 8][lane % 4 * 2 + q / 2 * 8 + e] = half_at(lanes[lane].a[q], e);
                    if (q < 2)
                        right[lane % 4 * 2 + q * 8 + e][lane / 4] = half_at(q ? lanes[lane].b1 : lanes[lane].b0, e);
                }
        add_products<16>(lanes, left, right);
    });
}
// Of bytes: 32 inputs, of which a lane holds 4 neighbours and those 16 further.
static int byte_at(unsigned int word, int which, bool is_signed) {
    const int byte = word >> (8 * which) & 255;
    return is_signed ? (signed char)byte : byte;
}
static void multiply_bytes(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, bool a_signed, bool b_signed) {
    me->whole = d, me->a = a, me->b0 = b0, me->b1 = b1;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        int left[16][32], right[32][8];
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int e = 0; e < 4; ++e) {
                    left[lane / 4 + q % 2 * 8][lane % 4 * 4 + q / 2 * 16 + e] = byte_at(lanes[lane].a[q], e, a_signed);
                    if (q < 2)
                        right[lane % 4 * 4 + q * 16 + e][lane / 4] = byte_at(q ? lanes[lane].b1 : lanes[lane].b0, e, b_signed);
                }
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int k = 0; k < 32; ++k)
                    lanes[lane].whole[q] += left[lane / 4 + q / 2 * 8][k] * right[k][lane % 4 * 2 + q % 2];
    });
}
void multiply(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    multiply_bytes(d, a, b0, b1, true, true);
}
void multiply_unsigned(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    multiply_bytes(d, a, b0, b1, false, true);
}
void multiply_by_unsigned(int (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    multiply_bytes(d, a, b0, b1, true, false);
}static float tf32(unsigned int word) { return __uint_as_float(word & 0xffffe000u); }
void multiply_tf32(float (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    me->d = d, me->a = a, me->b0 = b0, me->b1 = b1;
    Fiber *const lanes = warp_of(me);
    meet(my_block().warps[me->warp], 32, [=] {
        float left[16][8], right[8][8];
        for (int lane = 0; lane < 32; ++lane) {
            for (int q = 0; q < 4; ++q)
                left[lane / 4 + q % 2 * 8][lane % 4 + q / 2 * 4] = tf32(lanes[lane].a[q]);
            right[lane % 4][lane / 4] = tf32(lanes[lane].b0);
            right[lane % 4 + 4][lane / 4] = tf32(lanes[lane].b1);
        }
        add_products<8>(lanes, left, right);
    });
}

void copy_async(uint4 *to, const uint4 *from, int bytes) {
    touch_shared(to, sizeof *to, true);
    touch(to, sizeof *to, true);  // it may arrive at once, too
    if (me->copies.empty()) me->copies.emplace_back();
    me->copies.back().push_back({to, bytes ? *from : uint4{}});
}
void copy_commit() { me->copies.emplace_back(); }
void copies_wait(int pending) {
    // The last list is that of copies which are not committed yet.
    while ((int)me->copies.size() > pending + 1) {
        for (const Copy &copy : me->copies.front()) {
            *(uint4 *)copy.to = copy.value;
            landed(copy.to, sizeof copy.value);
        }
        me->copies.erase(me->copies.begin());
    }
}

// Matrices that 4 warps multiply from shared memory: rows of 64 bytes, chunks of 16 bytes shuffled.
UNCHECKED static const unsigned short *operand(unsigned long long described, int row, int k) {
    if (described >> 62 != 2 || (described >> 32 & 0x3fff) != 512 >> 4) abort();
    uintptr_t at = (described & 0x3fff) << 4;
    at += row / 8 * 512 + row % 8 * 64 + k * 2;
    at ^= at >> 7 & 3 ? (at >> 7 & 3) << 4 : 0;
    return (const unsigned short *)(my_block().memory + at);
}
static void touch_operand(const void *place) {
    touch_shared(place, 16, false);
    touch_fenced(place, 16);
}
unsigned long long matrix_at(const void *place) {
    const size_t at = (const char *)place - my_block().memory;
    return at >> 4 | 1ull << 16 | (512ull >> 4) << 32 | 2ull << 62;
}
// Other threads' writes must be ordered with all reads of a product, from its issue to the wait.
static void touch_operands(const Product &p) {
    const int thread = me->warp % 4 * 32 + me->lane;
    for (int k = 0; k < 16; k += 8) {
        if (!p.words && thread < 64) touch_operand(operand(p.a, thread, k));
        for (int column = thread; column < p.columns; column += 128) touch_operand(operand(p.b, column, k));
    }
}
void group_product(const Product &product) {
    if (me->products.empty()) me->products.emplace_back();
    me->products.back().push_back(product);
    touch_operands(product);
}
UNCHECKED static int product_of_bytes(const Product &p, int row, int column) {
    int sum = 0;
    for (int k = 0; k < 16; ++k)
        for (int e = 0; e < 2; ++e)
            sum += byte_at(*operand(p.a, row, k), e, p.is_signed) * byte_at(*operand(p.b, column, k), e, true);
    return sum;
}
// Of 8 floats that the lanes of a warp hold of each of 16 rows.
UNCHECKED static float product_of_floats(const Product &p, int row, int column) {
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) {
        unsigned int right;
        memcpy(&right, operand(p.b, column, k * 2), 4);
        const Fiber &other = warp_of(me)[row % 8 * 4 + k % 4];
        sum += tf32(other.shown->words[row / 8 + k / 4 * 2]) * tf32(right);
    }
    return sum;
}
UNCHECKED static float product_of_halves(const Product &p, int row, int column) {
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) sum += from_half(*operand(p.a, row, k)) * from_half(*operand(p.b, column, k));
    return sum;
}
void group_commit() { me->products.emplace_back(); }
void shared_for_group() { ++me->visitor->fences; }
void products_wait(int pending) {
    // Each thread makes its own sums, of what lies in memory and registers now.
    while ((int)me->products.size() > pending + 1) {
        for (const Product &p : me->products.front()) {
            me->shown = &p;
            touch_operands(p);
            meet(my_block().warps[me->warp], 32, [] {});
            for (int j = 0; j < p.columns / 8; ++j)
                for (int q = 0; q < 4; ++q) {
                    const int row = me->lane / 4 + q / 2 * 8, column = j * 8 + me->lane % 4 * 2 + q % 2;
                    if (p.whole) {
                        p.whole[j * 4 + q] += product_of_bytes(p, me->warp % 4 * 16 + row, column);
                        continue;
                    }
                    float &sum = p.sums[j * 4 + q];
                    sum = (p.add ? sum : 0.0f)
                        + (p.words ? product_of_floats(p, row, column)
                                   : product_of_halves(p, me->warp % 4 * 16 + row, column));
                }
            meet(my_block().warps[me->warp], 32, [] {});
        }
        me->products.erase(me->products.begin());
    }
    meet(my_block().groups[me->warp / 4], 128, [] {});
}
void cluster_wait() { barrier(CLUSTER, cluster_meeting, (int)fibers.size(), [] {}); }
char *remote(const void *local, int block, int size) {
    touch_shared(local, size, true);
    if ((unsigned int)block >= blocks.size()) fault("no block of the cluster", "the memory of block", block);
    return blocks[block].memory + ((const char *)local - my_block().memory);
}
void inbox_begin(unsigned long long *inbox) {
    if (me->thread.x != 0) return;
    barrier_begin(inbox);
    my_block().inboxes[inbox] = Inbox();
}
void inbox_expect(unsigned long long *inbox, int bytes) {
    barrier_used(inbox);
    Inbox &mine = my_block().inboxes.at(inbox);
    mine.missing += bytes;
    mine.told = true;
    ++moves;
}
void sent(int block, int bytes, unsigned long long *inbox) {
    ++moves;
    const auto found = blocks[block].inboxes.find(remote(inbox, block, sizeof *inbox));
    if (found == blocks[block].inboxes.end()) {
        if (!checks.fault[0]) snprintf(checks.fault, sizeof checks.fault, "block %d has no inbox there yet", block);
        return;
    }
    Inbox &to = found->second;
    come(CLUSTER, to.come);
    to.missing -= bytes;
    go_on(CLUSTER, Passed());
}
void inbox_wait(unsigned long long *inbox) {
    const auto &all = my_block().inboxes;
    while (!all.count(inbox) || !all.at(inbox).told || all.at(inbox).missing > 0) yield();
    ++moves;
    barrier_used(inbox);
    go_on(CLUSTER, all.at(inbox).come);
}
static const size_t STACK_BYTES = 1 << 16;
static void *scheduler;
static int my_number() { return (int)(me - fibers.data()); }
// In which order fibers take turns: 0 one after the other, 1 backwards, else drawn anew each turn.
extern "C" {
__attribute__((visibility("default"))) unsigned int fiber_order = 0;
}

extern "C" void switch_stack(void **from, void *to);
asm(".text\n.globl switch_stack\nswitch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

void yield() {
    if (checks.rewrite_count) finish_rewrites();
    switch_stack(&me->stack_pointer, scheduler);
}

static void (*entry)(void **);
static void **arguments;
static bool looked_at;  // whether what the launch may touch is known

static void run_fiber() {
    entry(arguments);
    if (checks.visitor) end_visit();
    me->done = true;
    ++moves;
    if (++my_block().ended == threads_per_block) checks.gone[me->rank] = true;
    yield();
    abort();
}

static void look_at(const Places &places, int cluster, size_t block_bytes) {
    static std::vector<Cell> cells;
    checks.buffer_count = places.buffer_count;
    checks.array_count = places.array_count;
    if (cluster > MAX_BLOCKS || places.buffer_count > MAX_RANGES || places.array_count > MAX_RANGES) abort();
    for (unsigned int i = 0; i < places.buffer_count; ++i) checks.buffers[i] = places.buffers[i];
    for (unsigned int i = 0; i < places.array_count; ++i) checks.arrays[i] = places.arrays[i];
    for (int r = 0; r < 2; ++r) checks.regions[r] = places.regions[r];
    checks.shared = blocks[0].memory;
    cells.resize(block_bytes * cluster / 2);
    checks.shared_cells = cells.data();
    checks.visitors = visitors.data();
    for (size_t i = 0; i < fibers.size(); ++i) {
        const int rank = i / threads_per_block, t = i % threads_per_block;
        const int warps = (threads_per_block + 31) / 32, warp = rank * warps + t / 32;
        const int group = rank * ((warps + 3) / 4) + t / 128;
        visitors[i] = {{(unsigned short)i, (unsigned short)warp, (unsigned short)group, (unsigned short)rank, 0}, {}, 0};
    }
    checks.arena_cells = places.arena_cells;
    checks.first_run = checks.run + 1;
}

static void arrange(std::vector<int> &order) {
    static unsigned int drawn = 0;
    for (int i = 0; i < (int)order.size(); ++i) order[i] = fiber_order == 1 ? (int)order.size() - 1 - i : i;
    if (fiber_order < 2) return;
    for (int i = (int)order.size() - 1; i > 0; --i) {
        drawn = drawn * 1664525u + 1013904223u + fiber_order;
        std::swap(order[i], order[(drawn >> 8) % (i + 1)]);
    }
}

// Let all fibers run to their end. Where none does anything any more, that is the fault.
static void run_all() {
    std::vector<int> order(fibers.size());
    for (bool left = true; left;) {
        const unsigned long before = moves;
        int waiting = 0;
        arrange(order);
        for (const int number : order) {
            Fiber &f = fibers[number];
            if (f.done) continue;
            self = me = &f;
            checks.visitor = CHECKED && looked_at ? f.visitor : nullptr;
            switch_stack(&scheduler, f.stack_pointer);
            checks.visitor = nullptr;
            if (checks.fault[0]) return;
            waiting += !f.done;
        }
        left = waiting > 0;
        if (left && moves == before) {
            snprintf(checks.fault, sizeof checks.fault, "%d of %d threads wait for others that do not come", waiting, (int)fibers.size());
            return;
        }
    }
}

// The bytes in the memory of a block, and in the guard after it, that belong to no array.
struct Gap { long begin, end; };
static std::vector<Gap> gaps_of(const Places *places, size_t shared) {
    std::vector<char> used(shared, places == nullptr);
    for (unsigned int i = 0; places && i < places->array_count; ++i)
        for (size_t at = (size_t)places->arrays[i].begin; at < (size_t)places->arrays[i].end; ++at) used[at] = 1;
    std::vector<Gap> gaps;
    for (long at = 0; at < (long)shared; ++at) {
        if (used[at]) continue;
        if (at == 0 || used[at - 1]) gaps.push_back({at, at});
        gaps.back().end = at + 1;
    }
    gaps.push_back({(long)shared, (long)checks.block_bytes});
    return gaps;
}
// Whether threads wrote there, or before the first block, if nothing else was found: they hold what they held.
static void look_at_gaps(const std::vector<Gap> &gaps) {
    static const std::vector<char> untouched(1 << 18, (char)0xff);
    const auto look = [](const Block &block, Gap gap) {
        for (long at = gap.begin; at < gap.end && !checks.fault[0]; at += (long)untouched.size()) {
            long stop = std::min(gap.end, at + (long)untouched.size());
            if (!memcmp(block.memory + at, untouched.data(), stop - at)) continue;
            while (block.memory[at] == (char)0xff) ++at;
            snprintf(checks.fault, sizeof checks.fault, "written, outside of all arrays: byte %ld of shared memory of block %d",
                     at, (int)(&block - blocks.data()));
        }
    };
    look(blocks[0], {-GUARD, 0});
    for (const Block &block : blocks)
        for (const Gap &gap : gaps) look(block, gap);
}

const char *launch(void (*kernel)(void **), void **given, const unsigned int *grid,
                   const unsigned int *local, int cluster, size_t shared, const Places *places) {
    entry = kernel;
    arguments = given;
    blockDim = {local[0], local[1], local[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    threads_per_block = (int)(local[0] * local[1] * local[2]);
    const int warps = (threads_per_block + 31) / 32;
    fibers.assign(cluster * threads_per_block, Fiber());
    blocks.assign(cluster, Block());
    const size_t block_bytes = ((shared + 1023) & ~(size_t)1023) + GUARD;
    memory.resize(block_bytes * cluster + GUARD + 1024);
    char *const start = (char *)(((uintptr_t)memory.data() + 1023) & ~(uintptr_t)1023) + GUARD;
    checks.block_count = cluster;
    checks.block_bytes = block_bytes;
    checks.shared = nullptr;
    for (Block &block : blocks) {
        block.memory = start + block_bytes * (&block - blocks.data());
        block.warps.resize(warps);
        block.groups.resize((warps + 3) / 4);
    }
    visitors.assign(fibers.size(), Visitor());
    // Not initialized, and freed with the launch: a page takes memory once a thread writes to it.
    const std::unique_ptr<char[]> stacks(new char[fibers.size() * STACK_BYTES]);
    for (Fiber &fiber : fibers) {
        fiber.stack = stacks.get() + (&fiber - fibers.data()) * STACK_BYTES;
        fiber.visitor = &visitors[&fiber - fibers.data()];
    }
    checks.fault[0] = 0;
    looked_at = places != nullptr;
    if (places) look_at(*places, cluster, block_bytes);
    const std::vector<Gap> gaps = gaps_of(places, shared);
    for (unsigned int z = 0; z < grid[2]; ++z)
        for (unsigned int y = 0; y < grid[1]; y += cluster)
            for (unsigned int x = 0; x < grid[0]; ++x) {
                cluster_meeting = Meeting();
                ++checks.run;
                memset(start - GUARD, 0xff, block_bytes * cluster + GUARD);  // NaN
                for (Block &block : blocks) {
                    block.ended = 0;
                    block.all = Meeting();
                    for (Meeting &each : block.some) each = Meeting();
                    block.gates.clear();
                    block.inboxes.clear();
                    for (Meeting &each : block.warps) each = Meeting();
                    for (Meeting &each : block.groups) each = Meeting();
                }
                for (bool &gone : checks.gone) gone = false;
                for (unsigned short &wanted : checks.wanted) wanted = 0;
                for (size_t i = 0; i < fibers.size(); ++i) {
                    Fiber &f = fibers[i];
                    const unsigned int t = i % threads_per_block;
                    f.rank = (int)(i / threads_per_block);
                    f.block = {x, y + f.rank, z};
                    f.thread = {t % local[0], t / local[0] % local[1], t / local[0] / local[1]};
                    f.lane = t % 32;
                    f.warp = t / 32;
                    f.done = false;
                    for (unsigned short &passed : visitors[i].passed) passed = 0;
                    visitors[i].fences = 0;
                    f.copies.clear();
                    f.products.clear();
                    uintptr_t top = (uintptr_t)(f.stack + STACK_BYTES) & ~(uintptr_t)15;
                    void **frame = (void **)(top - 16);
                    *frame = (void *)run_fiber;
                    f.stack_pointer = frame - 6;
                }
                run_all();
                look_at_gaps(gaps);
                for (Block &block : blocks)
                    for (const auto &inbox : block.inboxes)
                        if (inbox.second.missing && !checks.fault[0])
                            snprintf(checks.fault, sizeof checks.fault, "%d bytes were not sent, or too many", inbox.second.missing);
                if (checks.fault[0]) return checks.fault;
            }
    return checks.fault;
}
