// Times every compute primitive of every instruction set that runs here, on one and on two threads,
// best of several rounds: GB/s of what is read and GOP/s (two operations per multiply-add).
//
// usage: ops_bench [--isa NAME] [--threads N] [--only PREFIX] [--seconds-per-row S]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../tests/cpp/ops_testing.h"

namespace {

using namespace sublimate;
using namespace sublimate::cpu;
using sublimate::cpu::testing::Aligned;
using sublimate::cpu::testing::Matrix;
using sublimate::cpu::testing::QuantisedRows;
using sublimate::cpu::testing::Random;

struct Options {
    std::string isa;
    std::string only;
    int32_t threads = 0; // 0: one, then two
    double seconds = 0.3;
};

// Time of this thread alone: what others do to the machine counts less. For one thread only.
double thread_seconds() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double now_seconds() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(time).count();
}

// One round: every thread runs body(thread) once, started together. Returns seconds.
double one_round(int32_t threads, const std::function<void(int32_t)>& body) {
    if (threads == 1) {
        const double start = thread_seconds();
        body(0);
        return thread_seconds() - start;
    }
    std::atomic<int32_t> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> others;
    for (int32_t t = 1; t < threads; ++t) {
        others.emplace_back([&, t] {
            ready.fetch_add(1);
            while (!go.load(std::memory_order_acquire)) {
            }
            body(t);
        });
    }
    while (ready.load() < threads - 1) {
    }
    const double start = now_seconds();
    go.store(true, std::memory_order_release);
    body(0);
    for (std::thread& other : others) other.join();
    return now_seconds() - start;
}

double best_of(const Options& options, int32_t threads, const std::function<void(int32_t)>& body) {
    constexpr int32_t ROUNDS_MIN = 5;
    double best = 1e9;
    const double end = now_seconds() + options.seconds;
    for (int32_t round = 0; round < ROUNDS_MIN || now_seconds() < end; ++round) {
        best = std::min(best, one_round(threads, body));
    }
    return best;
}

void print_row(const Ops& ops, int32_t threads, const std::string& name, double seconds,
               double bytes, double operations) {
    std::printf("%-9s %d  %-44s %10.2f us %8.2f GB/s %9.2f GOP/s\n", ops.name, threads,
                name.c_str(), seconds * 1e6, bytes / seconds * 1e-9, operations / seconds * 1e-9);
    std::fflush(stdout);
}

bool wanted(const Options& options, const std::string& name) {
    return name.compare(0, options.only.size(), options.only) == 0;
}

// ---- matmul -----------------------------------------------------------------------------------

struct MatmulRow {
    const char* name;
    WeightKind kind;
    bool affine;
    int32_t outputs;
    int32_t columns;
    int32_t rows;
};

void bench_matmul(const Options& options, const Ops& ops, int32_t threads, const MatmulRow& row,
                  bool prompt) {
    auto* matmul = prompt ? ops.matmul_prompt : ops.matmul;
    const std::string name = std::string(prompt ? "prompt " : "") + "matmul " + row.name + " " +
                             std::to_string(row.outputs) + "x" + std::to_string(row.columns) +
                             " rows " + std::to_string(row.rows);
    if (!wanted(options, name)) return;
    Random random(1);
    const Matrix matrix =
        testing::random_matrix(random, row.kind, row.outputs, row.columns, row.affine);
    const QuantisedRows x = testing::random_rows(random, row.rows, row.columns);
    std::vector<float> out(static_cast<size_t>(row.rows) * static_cast<size_t>(row.outputs));
    const int32_t panels = matrix.packed.panels;
    const double seconds = best_of(options, threads, [&](int32_t thread) {
        matmul(matrix.packed, x.activations, 0, row.rows, panels * thread / threads,
               panels * (thread + 1) / threads, out.data(), row.outputs);
    });
    const double macs = 1.0 * row.rows * row.outputs * row.columns;
    print_row(ops, threads, name, seconds, static_cast<double>(matrix.bytes.size()), 2 * macs);
}

// The machine's read rate of this minute, which one row of weights can reach at best.
void bench_read(const Options& options, const Ops& ops, int32_t threads) {
    constexpr int64_t BYTES = 96'000'000;
    const std::string name = "matmul: plain read of 96 MB";
    if (!wanted(options, name)) return;
    const Aligned buffer(BYTES);
    volatile uint64_t sink = 0;
    const int64_t words = buffer.size() / 8;
    const double seconds = best_of(options, threads, [&](int32_t thread) {
        const auto* data = reinterpret_cast<const uint64_t*>(buffer.data());
        uint64_t sum[8] = {};
        for (int64_t i = words * thread / threads & ~int64_t{7};
             i + 8 <= words * (thread + 1) / threads; i += 8) {
            __builtin_prefetch(data + i + 768);
            for (int32_t j = 0; j < 8; ++j) sum[j] ^= data[i + j];
        }
        sink = sink ^ sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
    });
    print_row(ops, threads, name, seconds, BYTES, 0.0);
}

void bench_matmuls(const Options& options, const Ops& ops, int32_t threads) {
    const bool slow = ops.isa == Isa::ref;
    const bool portable = ops.isa == Isa::portable;
    const int32_t many = slow ? 8 : (portable ? 64 : 512);
    // 96 MB of weights, more than the caches: a decode step's read. Then what one layer needs, hot.
    const int32_t tall = slow ? 1024 : 262144;
    const MatmulRow rows[] = {
        {"u4 affine", WeightKind::u4, true, tall, 576, 1},
        {"u8 symmetric", WeightKind::u8, false, tall, 576, 1},
        {"u4 affine", WeightKind::u4, true, tall, 576, 2},
        {"u4 affine", WeightKind::u4, true, tall, 576, 4},
        {"u4 affine", WeightKind::u4, true, tall, 576, 8},
        {"u4 affine", WeightKind::u4, true, tall, 576, 32},
        {"u4 affine", WeightKind::u4, true, 3072, 576, 1},
        {"u4 affine", WeightKind::u4, true, 3072, 576, 4},
        {"u4 affine", WeightKind::u4, true, 3072, 576, 8},
        {"u4 affine", WeightKind::u4, true, 3072, 576, 32},
        {"u4 affine", WeightKind::u4, true, 3072, 576, many},
        {"u4 affine", WeightKind::u4, true, 576, 1536, many},
        {"u8 symmetric", WeightKind::u8, false, 3072, 576, many},
        {"k4", WeightKind::k4, false, tall / 4, 2048, 1},
        {"k5", WeightKind::k5, false, tall / 4, 2048, 1},
        {"k6", WeightKind::k6, false, tall / 4, 2048, 1},
        {"k3", WeightKind::k3, false, tall / 4, 2048, 1},
        {"k2", WeightKind::k2, false, tall / 4, 2048, 1},
        {"kn4", WeightKind::kn4, false, tall / 4, 2048, 1},
        {"n4", WeightKind::n4, false, tall / 4, 2048, 1},
        {"u8 symmetric", WeightKind::u8, false, tall / 4, 2048, 1},
        {"k4", WeightKind::k4, false, tall / 4, 2048, 8},
        {"k4", WeightKind::k4, false, 2048, 2048, many},
        {"k5", WeightKind::k5, false, 2048, 2048, many},
        {"k6", WeightKind::k6, false, 2048, 2048, many},
        {"k3", WeightKind::k3, false, 2048, 2048, many},
        {"k2", WeightKind::k2, false, 2048, 2048, many},
        {"kn4", WeightKind::kn4, false, 2048, 2048, many},
        {"n4", WeightKind::n4, false, 2048, 2048, many},
        {"u8 symmetric", WeightKind::u8, false, 2048, 2048, many},
        {"f32", WeightKind::f32, false, 3072, 576, 1},
        {"f32", WeightKind::f32, false, 3072, 576, many},
        {"bf16", WeightKind::bf16, false, 3072, 576, 1},
        {"bf16", WeightKind::bf16, false, 3072, 576, many},
    };
    for (const MatmulRow& row : rows) {
        bench_matmul(options, ops, threads, row, false);
        if (ops.matmul_prompt != ops.matmul) bench_matmul(options, ops, threads, row, true);
    }
}

// ---- attention --------------------------------------------------------------------------------

struct AttentionRow {
    int32_t rows;
    int32_t context; // tokens before the rows
    int32_t head_dim;
    KvType type;
    int32_t sequences; // each with pages of its own: more than one empties the caches
};

void bench_attention(const Options& options, const Ops& ops, int32_t threads,
                     const AttentionRow& row, bool prompt) {
    auto* attention = prompt ? ops.attention_prompt : ops.attention;
    constexpr int32_t KV_HEADS = 3;
    constexpr int32_t GROUP_HEADS = 3;
    const std::string name = std::string(prompt ? "prompt " : "") + "attention " +
                             kv_type_name(row.type) + " dim " + std::to_string(row.head_dim) +
                             " rows " + std::to_string(row.rows) + " at " +
                             std::to_string(row.context) + " x" + std::to_string(row.sequences);
    if (!wanted(options, name)) return;
    Random random(1);
    const KvLayout layout{row.type, KV_HEADS, row.head_dim, kv_head_bytes(row.type, row.head_dim)};
    const int32_t pages = (row.context + row.rows + limits::PAGE_TOKENS - 1) / limits::PAGE_TOKENS;
    Aligned arena(int64_t{pages} * row.sequences * KV_HEADS * layout.head_bytes);
    const auto numbers = random.floats(KV_HEADS * row.head_dim, -1.0f, 1.0f);
    for (int32_t token = 0; token < pages * row.sequences * limits::PAGE_TOKENS; ++token)
        ops.kv_append(numbers.data(), numbers.data(), layout, arena.data(),
                      token / limits::PAGE_TOKENS, token % limits::PAGE_TOKENS);
    std::vector<int32_t> table(static_cast<size_t>(pages * row.sequences));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    const int64_t stride = int64_t{KV_HEADS} * GROUP_HEADS * row.head_dim;
    const auto query = random.floats(row.rows * stride, -1.0f, 1.0f);
    std::vector<float> out(query.size());
    const double seconds = best_of(options, threads, [&](int32_t thread) {
        for (int32_t job = thread; job < row.sequences * KV_HEADS; job += threads) {
            const int32_t head = job % KV_HEADS;
            attention({query.data(), stride, out.data(), stride, row.rows, row.context,
                       head * GROUP_HEADS, GROUP_HEADS, head, arena.data(),
                       table.data() + job / KV_HEADS * pages, 0.125f},
                      layout);
        }
    });
    const double seen = row.rows * (row.context + (row.rows + 1) * 0.5) * row.sequences;
    const double macs = seen * KV_HEADS * GROUP_HEADS * row.head_dim * 2;
    print_row(ops, threads, name, seconds, static_cast<double>(arena.size()), 2 * macs);
}

void bench_attentions(const Options& options, const Ops& ops, int32_t threads) {
    const bool slow = ops.isa == Isa::ref || ops.isa == Isa::portable;
    const int32_t many = slow ? 64 : 512;
    const AttentionRow rows[] = {
        {1, 500, 64, KvType::bf16, 1},  {1, 500, 64, KvType::bf16, slow ? 8 : 256},
        {many, 0, 64, KvType::bf16, 1}, {many, 1024, 64, KvType::bf16, 1},
        {1, 500, 128, KvType::bf16, 1}, {many, 0, 128, KvType::bf16, 1},
        {1, 500, 64, KvType::f32, 1},   {many, 0, 64, KvType::f32, 1},
        {1, 500, 64, KvType::int8, 1},  {1, 500, 64, KvType::int8, slow ? 8 : 256},
        {many, 0, 64, KvType::int8, 1}, {1, 500, 128, KvType::int8, 1},
    };
    for (const AttentionRow& row : rows) {
        bench_attention(options, ops, threads, row, false);
        if (ops.attention_prompt != ops.attention) {
            bench_attention(options, ops, threads, row, true);
        }
    }
}

// ---- rows and sampler -------------------------------------------------------------------------

void bench_rows(const Options& options, const Ops& ops) {
    constexpr int32_t HIDDEN = 576;
    constexpr int32_t INNER = 1536;
    constexpr int32_t VOCABULARY = 49152;
    constexpr int32_t REPEATS = 100; // of the short ones, so that the clock sees them
    Random random(1);
    const auto x = random.floats(INNER, -2.0f, 2.0f);
    const auto y = random.floats(INNER, -2.0f, 2.0f);
    const auto logits = random.floats(VOCABULARY, -10.0f, 10.0f);
    std::vector<float> out(INNER), scales(INNER);
    std::vector<int8_t> values(INNER);
    std::vector<int32_t> sums(INNER);
    const KvLayout layout{KvType::bf16, 3, 64, kv_head_bytes(KvType::bf16, 64)};
    Aligned page(3 * layout.head_bytes);
    volatile float sink = 0.0f;
    const auto row = [&](const std::string& name, int32_t count, int32_t repeats,
                         const std::function<void()>& body) {
        if (!wanted(options, name)) return;
        const double seconds = best_of(options, 1, [&](int32_t) {
            for (int32_t i = 0; i < repeats; ++i) body();
        });
        print_row(ops, 1, name, seconds / repeats, 4.0 * count, count);
    };
    row("rms_norm 576", HIDDEN, REPEATS,
        [&] { ops.rms_norm(x.data(), y.data(), 1e-5f, HIDDEN, out.data()); });
    row("quantise 1536", INNER, REPEATS,
        [&] { ops.quantise(x.data(), INNER, values.data(), scales.data(), sums.data()); });
    // True rotations: repeated without end they neither grow nor vanish into slow subnormals.
    auto rotated = random.floats(HIDDEN, -2.0f, 2.0f);
    std::vector<float> cos_sin;
    for (int32_t i = 0; i < 32; ++i) cos_sin.insert(cos_sin.end(), {0.6f, 0.8f});
    row("rope 9x64", HIDDEN, REPEATS, [&] { ops.rope(rotated.data(), cos_sin.data(), 9, 64, 64); });
    row("kv_append 3x64", 2 * 192, REPEATS,
        [&] { ops.kv_append(x.data(), y.data(), layout, page.data(), 0, 5); });
    row("swiglu 1536", INNER, REPEATS, [&] { ops.swiglu(x.data(), y.data(), INNER, out.data()); });
    std::vector<float> total(INNER);
    row("add 1536", INNER, REPEATS, [&] { ops.add(total.data(), y.data(), INNER); });
    row("argmax 49152", VOCABULARY, 1,
        [&] { sink = static_cast<float>(ops.argmax(logits.data(), VOCABULARY)); });
    row("max_value 49152", VOCABULARY, 1, [&] { sink = ops.max_value(logits.data(), VOCABULARY); });
    row("sum_exp 49152", VOCABULARY, 1,
        [&] { sink = ops.sum_exp(logits.data(), VOCABULARY, 10.0f, 1.0f); });
    row("all_finite 49152", VOCABULARY, 1,
        [&] { sink = ops.all_finite(logits.data(), VOCABULARY) ? 1.0f : 0.0f; });
    row("gumbel_argmax 49152", VOCABULARY, 1, [&] {
        sink = static_cast<float>(ops.gumbel_argmax(logits.data(), VOCABULARY, 1.0f, -20.0f, 7, 3));
    });
}

void run_all(const Options& options) {
    for (Isa isa : {Isa::amx, Isa::avx512, Isa::avx2, Isa::portable, Isa::ref}) {
        if (!isa_runs(isa)) continue;
        if (!options.isa.empty() && options.isa != isa_name(isa)) continue;
        const Ops& ops = ops_for(isa);
        for (int32_t threads : {1, 2}) {
            if (options.threads != 0 && options.threads != threads) continue;
            bench_read(options, ops, threads);
            bench_matmuls(options, ops, threads);
            bench_attentions(options, ops, threads);
        }
        bench_rows(options, ops);
    }
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--isa") options.isa = argv[i + 1];
        if (name == "--only") options.only = argv[i + 1];
        if (name == "--threads") options.threads = std::atoi(argv[i + 1]);
        if (name == "--seconds-per-row") options.seconds = std::atof(argv[i + 1]);
    }
    run_all(options);
    return 0;
}
