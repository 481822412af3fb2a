// Reading adapters: pair the tensors of a file, find the matrix that each pair belongs to, lay out
// and pack.
#include "adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "../check.h"
#include "checked.h"
#include "pack.h"

namespace sublimate {

namespace {

constexpr int64_t ARENA_ALIGNMENT_BYTES = 64;
constexpr std::string_view SUFFIX_A = ".lora_a";
constexpr std::string_view SUFFIX_B = ".lora_b";

// A and B of one matrix of the model. Views into the file and its source.
struct Pair {
    std::optional<GgufTensor> a, b; // names are the file's own
    double factor = 1.0;
};

// By the name of the matrix, as blk.0.attn_q.weight: in one order whatever that of the file.
using Pairs = std::map<std::string, Pair, std::less<>>;

// A matrix that may have an adapter.
struct Target {
    AdapterPlace place;
    int32_t first_output; // of the place: index
    int32_t outputs;      // how many of the place's matrices the tensor holds, one after the other
};

std::string quoted(std::string_view name) {
    return "tensor '" + std::string(name) + "'";
}

// ---- what a file holds -------------------------------------------------------------------------

Status add_tensor(const GgufTensor& tensor, std::string_view target, double factor, Pairs* pairs) {
    bool is_a = target.ends_with(SUFFIX_A);
    if (!is_a && !target.ends_with(SUFFIX_B))
        return Status::error(quoted(tensor.name) + " is neither A nor B of an adapter");
    std::string matrix(target.substr(0, target.size() - SUFFIX_A.size()));
    Pair& pair = (*pairs)[matrix];
    std::optional<GgufTensor>& part = is_a ? pair.a : pair.b;
    if (part.has_value()) return Status::error(quoted(tensor.name) + " is there twice");
    part = tensor;
    if (!is_a) pair.factor = factor;
    return Status::success();
}

// GGUF files of Mistral's models and their adapters say llama, what reads its folders says mistral:
// only a window sets these apart, and no adapter has one.
bool is_for(std::string_view name, const Architecture& model) {
    const Architecture* named = find_architecture(name);
    auto tensors_of = [](const Architecture& one) -> std::string_view {
        return one.name == std::string_view("mistral") ? "llama" : one.name;
    };
    return named != nullptr && tensors_of(*named) == tensors_of(model);
}

// Of a GGUF file. alpha 0 stands for a factor of 1, as the format's other readers take it.
Status read_gguf(const Gguf& file, const ModelConfig& config, Pairs* pairs) {
    std::string_view kind, type, architecture;
    RETURN_IF_ERROR(file.string("general.type", &kind));
    RETURN_IF_ERROR(file.string("adapter.type", &type));
    RETURN_IF_ERROR(file.string("general.architecture", &architecture));
    if (kind != "adapter")
        return Status::error("the file is no adapter: its general.type is '" + std::string(kind) +
                             "'");
    if (type != "lora")
        return Status::error("adapters of the type '" + std::string(type) +
                             "' are not supported; lora is");
    if (!is_for(architecture, *config.architecture))
        return Status::error("the adapter is for '" + std::string(architecture) +
                             "', the model is '" + config.architecture->name + "'");
    if (file.find("adapter.alora.invocation_tokens") != nullptr)
        return Status::error("adapters that begin at an invocation (aLoRA) are not supported");
    double alpha = 0.0;
    RETURN_IF_ERROR(file.number("adapter.lora.alpha", &alpha));
    for (const GgufTensor& tensor : file.tensors()) {
        double rank = static_cast<double>(tensor.columns()); // of a B
        double factor = alpha == 0.0 ? 1.0 : alpha / rank;
        RETURN_IF_ERROR(add_tensor(tensor, tensor.name, factor, pairs));
    }
    return Status::success();
}

Status read_described(const AdapterSource& source, std::span<const std::byte> bytes, Pairs* pairs) {
    for (const AdapterTensor& told : source.tensors) {
        uint64_t element = told.type == TensorType::f32 ? sizeof(float) : sizeof(uint16_t);
        uint64_t count = 0, size = 0, end = 0;
        bool fits = checked_multiply(told.rows, told.columns, &count) &&
                    checked_multiply(count, element, &size) &&
                    checked_add(told.offset, size, &end) && end <= bytes.size();
        if (!fits || count == 0)
            return Status::error(quoted(told.name) + " does not lie within the file");
        GgufTensor tensor = {told.name,
                             told.type,
                             2,
                             {told.columns, told.rows, 1, 1},
                             bytes.subspan(told.offset, size)};
        RETURN_IF_ERROR(add_tensor(tensor, told.target, told.factor, pairs));
    }
    return Status::success();
}

// ---- one adapter -------------------------------------------------------------------------------

class AdapterLoader {
public:
    // described: the rows of a head are as PEFT's models have them, those that rotate together half
    // a head apart; else as GGUF files of the architecture have them.
    AdapterLoader(const ModelConfig& config, bool exact, bool described, Adapter* adapter)
        : config_(config), exact_(exact), described_(described), adapter_(*adapter) {}

    Status load(const Pairs& pairs) {
        if (pairs.empty()) return Status::error("the file holds no adapter");
        adapter_.kind = common_kind(pairs);
        parts_.resize(static_cast<size_t>(config_.layers));
        for (const auto& [name, pair] : pairs) RETURN_IF_ERROR(place(name, pair));
        adapter_.layers.resize(parts_.size());
        for (size_t layer = 0; layer < parts_.size(); layer++)
            for (size_t i = 0; i < ADAPTER_PLACES; i++)
                lay_out(parts_[layer][i], &adapter_.layers[layer][i]);
        RETURN_IF_ERROR(AnonymousMemory::map(arena_bytes_, "an adapter", &adapter_.memory));
        adapter_.bytes = arena_bytes_;
        for (const Job& job : jobs_) {
            std::byte* to = adapter_.memory.data() + job.offset;
            if (job.first_panel == 0) job.matrix->data = to;
            cpu::PackedMatrix shape = shape_of(job.tensor);
            pack_panels(job.tensor, shape, 0, shape.panels, to, job.order);
        }
        return Status::success();
    }

private:
    struct Part {
        Target target;
        const Pair* pair;
    };
    // One tensor, or some rows of it, on its way into the arena.
    struct Job {
        GgufTensor tensor;
        RowOrder order;
        cpu::PackedMatrix* matrix;
        int32_t first_panel; // of the matrix
        int64_t offset;      // of that panel
    };

    // Sixteen bits only if all tensors have the same ones.
    cpu::WeightKind common_kind(const Pairs& pairs) const {
        std::optional<TensorType> common;
        for (const auto& [name, pair] : pairs)
            for (const auto* part : {&pair.a, &pair.b}) {
                if (!part->has_value()) continue;
                if (common.has_value() && *common != (*part)->type) return cpu::WeightKind::f32;
                common = (*part)->type;
            }
        if (exact_ || !common.has_value()) return cpu::WeightKind::f32;
        if (*common == TensorType::f16) return cpu::WeightKind::f16;
        return *common == TensorType::bf16 ? cpu::WeightKind::bf16 : cpu::WeightKind::f32;
    }

    // blk.N.MODULE.weight. nullopt: a matrix that cannot have an adapter.
    std::optional<Target> find_target(std::string_view name, size_t* layer) const {
        constexpr std::string_view BLOCK = "blk.";
        constexpr std::string_view WEIGHT = ".weight";
        if (!name.starts_with(BLOCK) || !name.ends_with(WEIGHT)) return std::nullopt;
        name.remove_prefix(BLOCK.size());
        name.remove_suffix(WEIGHT.size());
        size_t number = 0;
        size_t digits = 0;
        while (digits < name.size() && name[digits] >= '0' && name[digits] <= '9' &&
               number < parts_.size())
            number = number * 10 + static_cast<size_t>(name[digits++] - '0');
        // One name for each matrix: else there could be more of them than a place has room for.
        const bool is_plain = digits == 1 || (digits > 1 && name[0] != '0');
        if (!is_plain || number >= parts_.size() || !name.substr(digits).starts_with('.'))
            return std::nullopt;
        *layer = number;
        return find_module(name.substr(digits + 1));
    }

    std::optional<Target> find_module(std::string_view module) const {
        bool fused = config_.architecture->fused_tensors;
        // An expert's matrices are one of many in a tensor, and a row's share of them is chosen.
        if (config_.architecture->has_experts && module.starts_with("ffn_")) return std::nullopt;
        if (fused && module == "attn_qkv") return Target{AdapterPlace::query_key_value, 0, 3};
        if (!fused && module == "attn_q") return Target{AdapterPlace::query_key_value, 0, 1};
        if (!fused && module == "attn_k") return Target{AdapterPlace::query_key_value, 1, 1};
        if (!fused && module == "attn_v") return Target{AdapterPlace::query_key_value, 2, 1};
        if (module == "attn_output") return Target{AdapterPlace::attention_output, 0, 1};
        if (fused && module == "ffn_up") return Target{AdapterPlace::gate_up, 0, 2};
        if (!fused && module == "ffn_gate") return Target{AdapterPlace::gate_up, 0, 1};
        if (!fused && module == "ffn_up") return Target{AdapterPlace::gate_up, 1, 1};
        if (module == "ffn_down") return Target{AdapterPlace::down, 0, 1};
        return std::nullopt;
    }

    int32_t input_columns(AdapterPlace place) const {
        if (place == AdapterPlace::attention_output) return config_.query_columns();
        return place == AdapterPlace::down ? config_.feed_forward : config_.hidden;
    }

    int32_t output_rows(AdapterPlace place, int32_t output) const {
        if (place == AdapterPlace::query_key_value)
            return output == 0 ? config_.query_columns() : config_.kv_columns();
        return place == AdapterPlace::gate_up ? config_.feed_forward : config_.hidden;
    }

    // Panels of the place's matrices before this one.
    int32_t panels_before(AdapterPlace place, int32_t output) const {
        int32_t panels = 0;
        for (int32_t i = 0; i < output; i++)
            panels += (output_rows(place, i) + cpu::PANEL_ROWS - 1) / cpu::PANEL_ROWS;
        return panels;
    }

    RowOrder order_of(AdapterPlace place, int32_t output) const {
        bool rotated = place == AdapterPlace::query_key_value && output < 2; // queries and keys
        if (!rotated || (!described_ && !config_.architecture->rotates_halves)) return {};
        // The converters of files that keep pairs bring whole heads into them.
        bool whole = !config_.architecture->rotates_halves;
        return {config_.head_dim, whole ? config_.head_dim : config_.rope.dimension};
    }

    static Status expect(const GgufTensor& tensor, uint64_t rows, uint64_t columns) {
        if (tensor.rows() == rows && tensor.columns() == columns) return Status::success();
        return Status::error(quoted(tensor.name) + " is " + std::to_string(tensor.columns()) +
                             " x " + std::to_string(tensor.rows()) + ", expected " +
                             std::to_string(columns) + " x " + std::to_string(rows));
    }

    Status place(const std::string& name, const Pair& pair) {
        const GgufTensor& some = pair.a.has_value() ? *pair.a : *pair.b;
        size_t layer = 0;
        std::optional<Target> target = find_target(name, &layer);
        if (!target.has_value())
            return Status::error(quoted(some.name) + " is for '" + name +
                                 "', which is no matrix of this model that can have an adapter");
        if (!pair.a.has_value() || !pair.b.has_value())
            return Status::error(quoted(some.name) + " is alone: A and B belong together");
        uint64_t rank = pair.a->rows();
        if (rank < 1 || rank > static_cast<uint64_t>(limits::ADAPTER_RANK_MAX))
            return Status::error(quoted(pair.a->name) + " has the rank " + std::to_string(rank) +
                                 ", outside 1 to " + std::to_string(limits::ADAPTER_RANK_MAX));
        if (!std::isfinite(static_cast<float>(pair.factor)))
            return Status::error(quoted(pair.b->name) + " is scaled by no finite number");
        auto columns = static_cast<uint64_t>(input_columns(target->place));
        RETURN_IF_ERROR(expect(*pair.a, rank, columns));
        uint64_t rows = 0;
        for (int32_t i = 0; i < target->outputs; i++)
            rows += static_cast<uint64_t>(output_rows(target->place, target->first_output + i));
        RETURN_IF_ERROR(expect(*pair.b, rows, rank));
        parts_[layer][static_cast<size_t>(target->place)].push_back({*target, &pair});
        return Status::success();
    }

    // All that is added at one place: every A behind the other, then every B.
    void lay_out(const std::vector<Part>& parts, LowRankUpdate* update) {
        if (parts.empty()) return;
        cpu::PackedMatrix& down = update->down;
        down = shape_of(*parts.front().pair->a);
        down.panels = 0;
        for (const Part& part : parts) {
            const GgufTensor& a = *part.pair->a;
            cpu::PackedMatrix shape = shape_of(a);
            int64_t offset = reserve(shape);
            jobs_.push_back({a, {}, &down, down.panels, offset});
            adapter_.rank = std::max(adapter_.rank, shape.rows);
            adapter_.parameters += int64_t{shape.rows} * shape.columns;
            down.panels += shape.panels;
            auto factor = static_cast<float>(part.pair->factor);
            update->factors.resize(static_cast<size_t>(down.panels), factor);
        }
        down.rows = down.panels * cpu::PANEL_ROWS;
        int32_t first_panel = 0;
        for (const Part& part : parts) {
            add_outputs(part, first_panel * cpu::PANEL_ROWS, update);
            first_panel += shape_of(*part.pair->a).panels;
        }
    }

    void add_outputs(const Part& part, int32_t first_column, LowRankUpdate* update) {
        const GgufTensor& b = *part.pair->b;
        uint64_t row_bytes = b.row_bytes();
        uint64_t at = 0;
        for (int32_t i = 0; i < part.target.outputs; i++) {
            int32_t index = part.target.first_output + i;
            auto rows = static_cast<uint64_t>(output_rows(part.target.place, index));
            GgufTensor some = b;
            some.dimensions = {b.columns(), rows, 1, 1};
            some.data = b.data.subspan(at * row_bytes, rows * row_bytes);
            at += rows;
            CHECK(update->output_count < LowRankUpdate::OUTPUTS_MAX);
            LowRankOutput& output = update->outputs[update->output_count++];
            output.first_panel = panels_before(part.target.place, index);
            output.first_column = first_column;
            output.up = shape_of(some);
            adapter_.parameters += int64_t{output.up.rows} * output.up.columns;
            int64_t offset = reserve(output.up);
            jobs_.push_back({some, order_of(part.target.place, index), &output.up, 0, offset});
        }
    }

    cpu::PackedMatrix shape_of(const GgufTensor& tensor) const {
        cpu::PackedMatrix shape = packed_shape(tensor, true);
        shape.kind = adapter_.kind;
        shape.panel_bytes = cpu::panel_bytes_for(shape.kind, shape.columns, false);
        return shape;
    }

    // Sizes are within those of the model times the largest rank: no wrap.
    int64_t reserve(const cpu::PackedMatrix& matrix) {
        int64_t at = arena_bytes_;
        arena_bytes_ += matrix.panels * matrix.panel_bytes;
        CHECK(arena_bytes_ % ARENA_ALIGNMENT_BYTES == 0);
        return at;
    }

    const ModelConfig& config_;
    const bool exact_;
    const bool described_;
    Adapter& adapter_;
    std::vector<std::array<std::vector<Part>, ADAPTER_PLACES>> parts_; // (layer)
    std::vector<Job> jobs_;
    int64_t arena_bytes_ = 0;
};

Status load_one(const AdapterSource& source, const ModelConfig& config, bool exact,
                Adapter* adapter) {
    bool described = !source.tensors.empty();
    FileMapping mapping;
    Gguf file;
    Pairs pairs;
    if (described) {
        RETURN_IF_ERROR(FileMapping::open(source.path, &mapping));
        RETURN_IF_ERROR(read_described(source, mapping.bytes(), &pairs));
    } else {
        RETURN_IF_ERROR(Gguf::open(source.path, &file));
        if (file.packed() != nullptr) return Status::error("a packed file is no adapter");
        RETURN_IF_ERROR(read_gguf(file, config, &pairs));
    }
    return AdapterLoader(config, exact, described, adapter).load(pairs);
}

} // namespace

Status load_adapters(const std::vector<AdapterSource>& sources, const ModelConfig& config,
                     bool exact, Adapters* adapters) {
    if (sources.size() > static_cast<size_t>(limits::ADAPTERS_MAX))
        return Status::error(std::to_string(sources.size()) + " adapters are more than " +
                             std::to_string(limits::ADAPTERS_MAX));
    Adapters fresh;
    for (const AdapterSource& source : sources) {
        Adapter adapter;
        adapter.name = source.name;
        Status status = load_one(source, config, exact, &adapter);
        if (!status.ok())
            return Status::error("adapter '" + source.name + "' (" + source.path +
                                 "): " + status.message);
        for (const auto& layer : adapter.layers)
            for (const LowRankUpdate& update : layer)
                fresh.columns_max = std::max(fresh.columns_max, update.down.rows);
        fresh.all.push_back(std::move(adapter));
    }
    *adapters = std::move(fresh);
    return Status::success();
}

} // namespace sublimate
