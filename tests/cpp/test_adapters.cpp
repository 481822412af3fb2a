// Adapters: against their slow twin, which is a model that has them merged into its weights; the
// promise that a row's bits do not depend on what else is in its step; and files that are wrong.
#include <algorithm>
#include <string>
#include <vector>

#include "core/cpu/allocations.h"
#include "forward_twin.h"
#include "test.h"
#include "tiny_adapter.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;

constexpr double EXACT_BAR = 1e-4; // of the largest logit
constexpr int32_t LENGTH = 70;

std::shared_ptr<LoadedModel> load(const std::string& path, LoadOptions options) {
    std::shared_ptr<LoadedModel> model;
    if (options.kv_bytes == 0) options.kv_bytes = 8 << 20;
    if (options.threads == 0) options.threads = 2;
    Status status = load_model(path, options, &model);
    CHECK_BECAUSE(status.ok(), status.message.c_str());
    return model;
}

std::shared_ptr<LoadedModel> load_with(const TinyLlama& tiny,
                                       const std::vector<TinyAdapter>& adapters,
                                       LoadOptions options = {}) {
    std::vector<std::unique_ptr<TemporaryFile>> files;
    for (const TinyAdapter& adapter : adapters) {
        files.push_back(std::make_unique<TemporaryFile>(adapter_file(tiny, adapter)));
        std::string name = "adapter-" + std::to_string(files.size());
        options.adapters.push_back({name, files.back()->path(), {}});
    }
    TemporaryFile base(tiny_file(tiny));
    return load(base.path(), options);
}

std::vector<Logits> logits_of(LoadedModel& model, int32_t adapter) {
    return Driver(model, random_tokens(1, LENGTH)).alone(0, LENGTH, Arithmetic::prompt, adapter);
}

double distance(const std::vector<Logits>& a, const std::vector<Logits>& b) {
    std::vector<std::vector<double>> doubles;
    for (const Logits& row : b) doubles.emplace_back(row.begin(), row.end());
    return worst_error(a, doubles);
}

// All architectures, exact.
std::vector<TinyLlama> families() {
    std::vector<TinyLlama> all;
    for (const Architecture& architecture : ARCHITECTURES) {
        all.emplace_back();
        all.back().architecture = architecture.name;
        all.back().layers = std::max(2, architecture.full_attention_every);
        all.back().window = 37;
        all.back().type = all.back().value_type = TensorType::f32;
        all.back().feed_forward = architecture.has_experts ? 96 : 88 + 5; // no whole panels
    }
    return all;
}

LoadOptions exact() {
    LoadOptions options;
    options.exact = true;
    return options;
}

} // namespace

TEST(an_adapter_equals_merged_weights) {
    for (const TinyLlama& tiny : families()) {
        TinyAdapter first;
        TinyAdapter second;
        second.rank = 17; // two panels
        second.seed = 12;
        second.alpha = 0.0f; // a factor of 1
        auto model = load_with(tiny, {first, second}, exact());
        std::vector<Logits> base = logits_of(*model, 0);
        for (int32_t adapter : {1, 2}) {
            TemporaryFile file(merged_file(tiny, adapter == 1 ? first : second));
            auto merged = load(file.path(), exact());
            std::vector<Logits> wanted = logits_of(*merged, 0);
            EXPECT_NEAR(distance(logits_of(*model, adapter), wanted), 0.0, EXACT_BAR);
            EXPECT(distance(base, wanted) > 0.01); // it does something
        }
    }
}

TEST(each_module_alone_equals_merged_weights) {
    TinyLlama tiny;
    tiny.type = tiny.value_type = TensorType::f32;
    std::vector<TinyAdapter> adapters;
    for (const char* module :
         {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
        adapters.emplace_back();
        adapters.back().modules = {module};
        adapters.back().rank = 1 + static_cast<int32_t>(adapters.size()) * 3;
    }
    auto model = load_with(tiny, adapters, exact());
    std::vector<Logits> base = logits_of(*model, 0);
    for (size_t i = 0; i < adapters.size(); i++) {
        TemporaryFile file(merged_file(tiny, adapters[i]));
        std::vector<Logits> wanted = logits_of(*load(file.path(), exact()), 0);
        std::vector<Logits> ours = logits_of(*model, static_cast<int32_t>(i) + 1);
        EXPECT_NEAR(distance(ours, wanted), 0.0, EXACT_BAR);
        EXPECT(distance(base, wanted) > 0.001);
    }
}

// What the rows of a head look like in a file is the file's business.
TEST(described_tensors_equal_a_gguf_file) {
    for (const TinyLlama& tiny : families()) {
        TinyAdapter adapter;
        auto wanted = logits_of(*load_with(tiny, {adapter}, exact()), 1);
        DescribedAdapter described(tiny, adapter);
        TemporaryFile numbers(described.bytes);
        TemporaryFile base(tiny_file(tiny));
        LoadOptions options = exact();
        options.adapters.push_back({"it", numbers.path(), described.tensors});
        EXPECT(same_bits(logits_of(*load(base.path(), options), 1), wanted));
    }
}

TEST(sixteen_bits_are_kept_and_change_nothing) {
    TinyLlama tiny;
    TinyAdapter adapter;
    auto wanted = load_with(tiny, {adapter});
    for (TensorType type : {TensorType::f16, TensorType::bf16}) {
        adapter.type = type;
        auto model = load_with(tiny, {adapter});
        EXPECT(model->adapters.all[0].bytes < wanted->adapters.all[0].bytes);
        // Halves round down what is smaller than their step: near, not equal.
        double error = distance(logits_of(*model, 1), logits_of(*wanted, 1));
        EXPECT_NEAR(error, 0.0, type == TensorType::bf16 ? 0.0 : 2e-3);
    }
}

void check_batch(const TinyLlama& tiny, Arithmetic arithmetic, const LoadOptions& options) {
    constexpr int32_t SEQUENCES = 12;
    TinyAdapter first;
    TinyAdapter second;
    second.seed = 12;
    second.rank = 24;
    second.modules = {"attn_v", "ffn_down", "ffn_gate"};
    auto model = load_with(tiny, {first, second}, options);
    auto tokens = random_tokens(SEQUENCES, 40);
    std::vector<std::vector<Logits>> alone;
    {
        Driver driver(*model, tokens);
        for (int32_t s = 0; s < SEQUENCES; s++)
            alone.push_back(driver.alone(s, 40, arithmetic, s % 3));
    }
    Driver together(*model, tokens);
    for (int32_t position = 0; position < 40;) {
        // Many rows, then few: both ways of norming, blocks of one adapter and of several.
        int32_t count = position < 24 ? 8 : 1;
        std::vector<Part> parts;
        for (int32_t s = 0; s < SEQUENCES; s++)
            parts.push_back({s, position, count, arithmetic, s % 3});
        std::rotate(parts.begin(), parts.begin() + position % SEQUENCES, parts.end());
        size_t step = position < 30 ? parts.size() : 3; // so few that each thread norms them all
        for (size_t from = 0; from < parts.size(); from += step) {
            std::vector<Part> some(parts.begin() + static_cast<std::ptrdiff_t>(from),
                                   parts.begin() + static_cast<std::ptrdiff_t>(from + step));
            auto rows = together.step(some);
            for (size_t i = 0; i < rows.size(); i++) {
                const Part& part = some[i / static_cast<size_t>(count)];
                size_t at = static_cast<size_t>(position) + i % static_cast<size_t>(count);
                EXPECT(same_bits(rows[i], alone[static_cast<size_t>(part.sequence)][at]));
            }
        }
        position += count;
    }
}

TEST(two_adapters_and_the_base_in_one_batch_equal_each_alone) {
    TinyLlama quantised;
    TinyLlama mixed;
    mixed.value_type = TensorType::q8_0;
    mixed.architecture = "gemma2";
    for (const TinyLlama& tiny : {quantised, mixed})
        for (Arithmetic arithmetic : {Arithmetic::prompt, Arithmetic::generated})
            for (int32_t threads : {1, 3}) {
                LoadOptions options;
                options.threads = threads;
                check_batch(tiny, arithmetic, options);
            }
    check_batch(quantised, Arithmetic::generated, exact());
}

TEST(chunks_do_not_change_bits) {
    auto model = load_with({}, {{}});
    auto tokens = random_tokens(1, 90);
    auto whole = Driver(*model, tokens).alone(0, 90, Arithmetic::prompt, 1);
    for (int32_t chunk : {1, 5, 33})
        EXPECT(same_bits(Driver(*model, tokens).alone(0, chunk, Arithmetic::prompt, 1), whole));
}

TEST(instruction_sets_agree) {
    std::vector<Logits> wanted;
    for (const char* name : {"ref", "avx2", "avx512"}) { // portable's attention rounds otherwise
        cpu::Isa isa;
        CHECK(cpu::isa_from_name(name, &isa));
        if (!cpu::isa_runs(isa)) continue;
        LoadOptions options;
        options.isa = name;
        auto logits = logits_of(*load_with({}, {{}}, options), 1);
        if (wanted.empty()) wanted = logits;
        EXPECT(same_bits(logits, wanted));
    }
}

TEST(steps_with_adapters_allocate_nothing) {
    auto model = load_with({}, {{}, {}});
    auto tokens = random_tokens(1, 90);
    std::vector<int32_t> positions(90), table = {0, 1, 2};
    for (int32_t i = 0; i < 90; i++) positions[static_cast<size_t>(i)] = i;
    int64_t before = cpu::heap_allocations();
    cpu::watch_allocations(true);
    for (int32_t rows : {90, 2, 32}) {
        Segment segments[2] = {{0, 0, 1, 0, rows, Arithmetic::prompt, 2, 0, 0},
                               {0, 1, rows - 1, 1, rows, Arithmetic::prompt, 1, 0, 0}};
        int32_t last = rows - 1;
        Step step = {rows,     2,     1,           3, tokens[0].data(), positions.data(),
                     segments, &last, table.data()};
        model->model->forward(step);
    }
    int64_t watched = cpu::heap_allocations() - before;
    cpu::watch_allocations(false);
    EXPECT_EQ(watched, 0);
}

// ---- files that are wrong ----------------------------------------------------------------------

namespace {

std::string refusal(const std::vector<std::byte>& bytes, std::vector<AdapterTensor> tensors = {},
                    const TinyLlama& model_of = {}) {
    TemporaryFile file(bytes);
    TemporaryFile base(tiny_file(model_of));
    LoadOptions options;
    options.kv_bytes = 1 << 20;
    options.threads = 1;
    options.adapters.push_back({"it", file.path(), std::move(tensors)});
    std::shared_ptr<LoadedModel> model;
    return load_model(base.path(), options, &model).message;
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::string broken(const std::function<void(TinyAdapter&)>& damage) {
    TinyAdapter adapter;
    damage(adapter);
    return refusal(adapter_file({}, adapter));
}

TensorSpec tensor(const std::string& name, std::vector<uint64_t> dimensions) {
    size_t count = 1;
    for (uint64_t dimension : dimensions) count *= static_cast<size_t>(dimension);
    return {name, TensorType::f32, std::move(dimensions), std::vector<std::byte>(count * 4)};
}

} // namespace

// The file of a model that also sees, and its adapters, have a name of their own for it; Mistral's
// have llama's in GGUF files, and their own in folders.
TEST(an_adapter_is_of_an_architecture_whatever_that_is_called) {
    TinyLlama seeing;
    seeing.architecture = "qwen2vl";
    EXPECT_EQ(load_with(seeing, {TinyAdapter{}})->adapters.count(), 1);
    TinyLlama llama, mistral;
    mistral.architecture = "mistral";
    EXPECT_EQ(refusal(adapter_file(llama, {}), {}, mistral), "");
    EXPECT_EQ(refusal(adapter_file(mistral, {}), {}, llama), "");
    EXPECT(has(refusal(adapter_file(llama, {}), {}, seeing), "is for 'llama', the model is"));
}

TEST(a_gguf_file_that_is_wrong_is_refused_with_the_tensor) {
    auto extra = [](TensorSpec spec) {
        return broken([&](TinyAdapter& a) {
            a.modules = {"attn_q"};
            a.extra = [&](GgufBytes& file) { file.tensor(spec); };
        });
    };
    EXPECT(has(refusal(tiny_file({})), "adapter 'it' ("));
    EXPECT(has(refusal(tiny_file({})), "no adapter: its general.type is ''"));
    EXPECT(has(broken([](TinyAdapter& a) { a.adapter_type = "control"; }), "'control'"));
    TinyLlama other;
    other.architecture = "qwen3";
    EXPECT(has(refusal(adapter_file(other, {})), "is for 'qwen3', the model is 'llama'"));
    EXPECT(has(broken([](TinyAdapter& a) { a.modules = {"none"}; }), "holds no adapter"));
    EXPECT(has(broken([](TinyAdapter& a) { a.rank = 600; }), "has the rank 600"));
    EXPECT(has(broken([](TinyAdapter& a) { a.alpha = HUGE_VALF; }), "adapter.lora.alpha"));
    TinyLlama wide;
    wide.hidden = 96;
    std::string shape = refusal(adapter_file(wide, {}));
    EXPECT(has(shape, "tensor 'blk.0.") && has(shape, "expected"));
    EXPECT(has(extra(tensor("token_embd.weight.lora_a", {64, 4})), "'token_embd.weight.lora_a'"));
    EXPECT(has(extra(tensor("blk.2.attn_v.weight.lora_a", {64, 4})), "'blk.2.attn_v.weight'"));
    EXPECT(has(extra(tensor("blk.99999999999999999999.attn_v.weight.lora_a", {64, 4})),
               "no matrix of this model"));
    // The same matrix under more names than its place has matrices.
    EXPECT(has(broken([](TinyAdapter& a) {
                   a.extra = [](GgufBytes& file) {
                       for (const char* layer : {"00", "000", "0000", "00000"}) {
                           std::string name = std::string("blk.") + layer + ".attn_q.weight";
                           file.tensor(tensor(name + ".lora_a", {64, 4}));
                           file.tensor(tensor(name + ".lora_b", {4, 64}));
                       }
                   };
               }),
               "is for 'blk.00.attn_q.weight', which is no matrix"));
    EXPECT(has(extra(tensor("blk.0.ffn_gate_inp.weight.lora_a", {64, 4})), "ffn_gate_inp"));
    EXPECT(has(extra(tensor("blk.0.attn_v.weight.lora_a", {64, 4})), "A and B belong together"));
    EXPECT(has(extra(tensor("blk.0.attn_v.weight", {64, 32})), "is neither A nor B"));
    EXPECT(has(broken([](TinyAdapter& a) {
                   a.extra = [](GgufBytes& file) {
                       file.numbers("adapter.alora.invocation_tokens", ValueType::u32,
                                    std::vector<uint32_t>{1, 2});
                   };
               }),
               "aLoRA"));
    // Experts have no matrix of their own; what the row meets is chosen.
    TinyLlama experts;
    experts.architecture = "qwen3moe";
    TinyAdapter of_experts;
    of_experts.extra = [](GgufBytes& file) {
        file.tensor(tensor("blk.0.ffn_down.weight.lora_a", {96, 4}));
    };
    EXPECT(has(refusal(adapter_file(experts, of_experts), {}, experts), "'blk.0.ffn_down.weight'"));
    std::vector<std::byte> whole = adapter_file({}, {});
    for (size_t bytes : {size_t{3}, size_t{24}, whole.size() / 2, whole.size() - 1}) {
        std::vector<std::byte> cut(whole.begin(),
                                   whole.begin() + static_cast<std::ptrdiff_t>(bytes));
        EXPECT(has(refusal(cut), "adapter 'it'"));
    }
}

TEST(a_description_that_is_wrong_is_refused_with_the_tensor) {
    const DescribedAdapter right({}, {});
    EXPECT_EQ(refusal(right.bytes, right.tensors), "");
    auto with = [&](const std::function<void(AdapterTensor&)>& damage) {
        std::vector<AdapterTensor> tensors = right.tensors;
        damage(tensors[2]); // an A
        return refusal(right.bytes, tensors);
    };
    const std::string name = "blk.0.attn_k.weight"; // also where the fault is seen at the B
    using Damage = std::function<void(AdapterTensor&)>;
    for (const Damage& damage : std::vector<Damage>{
             [](AdapterTensor& t) { t.offset = UINT64_MAX - 8; },
             [&](AdapterTensor& t) { t.offset = right.bytes.size() - 8; },
             [](AdapterTensor& t) { t.rows = UINT64_MAX / 2, t.columns = 4; },
             [](AdapterTensor& t) { t.rows = 0; }, [](AdapterTensor& t) { t.rows++; },
             [](AdapterTensor& t) { t.columns--; },
             [](AdapterTensor& t) { t.target = "blk.0.attn_q.weight"; },
             [](AdapterTensor& t) { t.target = "blk.0.lora_a"; },
             [](AdapterTensor& t) { t.target = ".lora_a"; }})
        EXPECT(has(with(damage), name));
    EXPECT(has(with([](AdapterTensor& t) { t.target = "blk.0.attn_q.weight.lora_a"; }), "twice"));
    std::vector<AdapterTensor> scaled = right.tensors;
    scaled[1].factor = NAN;
    EXPECT(has(refusal(right.bytes, scaled), "no finite number"));
}

TEST(more_adapters_than_the_limit_are_refused) {
    LoadOptions options;
    for (int32_t i = 0; i <= limits::ADAPTERS_MAX; i++) options.adapters.push_back({"it", "/", {}});
    std::shared_ptr<LoadedModel> model;
    EXPECT(has(load_tiny({}, options, &model).message, "65 adapters are more than 64"));
}
