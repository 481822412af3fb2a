// Any bytes as a GGUF file: parse it, read every value and tensor by its declared type, and plan a
// model from it, as to serve it and as to show what it is. Must end in a result or a message.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/model/config.h"
#include "core/model/model.h"
#include "core/model/pack.h"

namespace {

using namespace sublimate;

// Reads all payloads, so that a sanitizer sees a view that leaves the input.
uint64_t touch(const Gguf& file) {
    uint64_t sum = 0;
    for (const GgufValue& value : file.values()) {
        CHECK(file.find(value.key) == &value);
        if (value.type == ValueType::string) {
            for (std::string_view text : gguf_strings(value))
                for (char c : text) sum += static_cast<uint8_t>(c);
        } else {
            for (std::byte byte : value.payload) sum += static_cast<uint64_t>(byte);
        }
    }
    for (const GgufTensor& tensor : file.tensors()) {
        CHECK(file.tensor(tensor.name) == &tensor);
        if (is_supported(tensor.type))
            CHECK(tensor.row_bytes() * tensor.rows() == tensor.data.size());
        for (std::byte byte : tensor.data) sum += static_cast<uint64_t>(byte);
    }
    return sum;
}

// Packing must stay inside the tensor and the panel.
void pack(const GgufTensor& tensor) {
    constexpr uint64_t ELEMENTS_MAX = 1 << 16;
    if (tensor.columns() * tensor.rows() > ELEMENTS_MAX) return;
    cpu::PackedMatrix shape = packed_shape(tensor, tensor.name.size() % 2 == 0);
    std::vector<std::byte> data(static_cast<size_t>(shape.panels * shape.panel_bytes));
    pack_panels(tensor, shape, 0, shape.panels, data.data());
    shape.data = data.data();
    std::vector<float> row(tensor.columns());
    unpack_row(shape, shape.rows - 1, row.data());
}

void show(std::span<const std::byte> bytes) {
    Gguf file;
    if (!Gguf::parse(bytes, &file, TensorTypes::any).ok()) return;
    volatile uint64_t sink = touch(file);
    static_cast<void>(sink);
    ModelPlan plan;
    if (!plan_model(file, {}, bytes.size() % 2 == 0, &plan).ok()) return;
    CHECK(plan.weight_bytes >= 0 && plan.kv_page_bytes > 0);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    show({reinterpret_cast<const std::byte*>(data), size});
    Gguf file;
    if (!Gguf::parse({reinterpret_cast<const std::byte*>(data), size}, &file).ok()) return 0;
    volatile uint64_t sink = touch(file);
    static_cast<void>(sink);
    for (const GgufTensor& tensor : file.tensors()) pack(tensor);
    ModelConfig config;
    if (!read_config(file, {}, &config).ok()) return 0;
    CHECK(config.context_length >= 1 && config.heads % config.kv_heads == 0);
    RopeTable table;
    if (make_rope_table(file, config.rope, &table).ok())
        for (float frequency : table.inverse_frequencies) CHECK(std::isfinite(frequency));
    return 0;
}
