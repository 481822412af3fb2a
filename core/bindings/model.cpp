// Python's view of models and of the machine: Gguf, Model, probe, heap_allocations. See _core.pyi.
//
// defines: value_object, open_gguf, join_gguf, plan_info, convert, source_from, load, logits,
// choice_info, adapter_infos, model_info, probe, bind_gguf, bind_model
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../cpu/allocations.h"
#include "../cpu/probe.h"
#include "../model/convert.h"
#include "../model/model.h"
#include "../model/quantise.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

constexpr double NS_PER_MS = 1e6;

void raise_if_error(const Status& status) {
    if (!status.ok()) throw CoreError(status.message);
}

// ---- Gguf ------------------------------------------------------------------------------------
nb::object text_object(std::string_view text) {
    PyObject* decoded =
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (!decoded) nb::raise_python_error();
    return nb::steal<nb::object>(decoded);
}

nb::object element_object(ValueType type, const std::byte* element) {
    if (type == ValueType::boolean) return nb::bool_(*element != std::byte{0});
    if (gguf_is_integer(type)) return nb::int_(gguf_integer(type, element));
    return nb::float_(gguf_number(type, element));
}

nb::object value_object(const GgufValue& value) {
    nb::list list;
    if (value.type == ValueType::string) {
        for (std::string_view text : gguf_strings(value)) list.append(text_object(text));
    } else {
        uint64_t bytes = gguf_element_bytes(value.type);
        for (uint64_t i = 0; i < value.count; i++)
            list.append(element_object(value.type, value.payload.data() + i * bytes));
    }
    return value.is_array ? nb::object(list) : nb::object(list[0]);
}

Gguf open_gguf(const std::string& path, bool any_type) {
    Gguf file;
    raise_if_error(Gguf::open(path, &file, any_type ? TensorTypes::any : TensorTypes::supported));
    return file;
}

using Files = std::vector<std::pair<std::string, int64_t>>; // (path, bytes)

std::vector<FilePart> file_parts(const Files& files) {
    std::vector<FilePart> parts;
    for (const auto& [path, size_bytes] : files) parts.push_back({path, size_bytes});
    return parts;
}

Gguf join_gguf(const nb::bytes& header, const Files& files) {
    Gguf file;
    raise_if_error(Gguf::join({reinterpret_cast<const std::byte*>(header.c_str()), header.size()},
                              file_parts(files), &file));
    return file;
}

nb::dict gguf_metadata(const Gguf& file) {
    nb::dict result;
    for (const GgufValue& value : file.values()) // that one is larger than all others together
        if (value.key != "tokenizer.huggingface.json")
            result[text_object(value.key)] = value_object(value);
    return result;
}

nb::dict config_info(const ModelConfig& config) {
    nb::dict info;
    info["architecture"] = config.architecture->name;
    info["parameters"] = config.parameters;
    info["layers"] = config.layers;
    info["hidden"] = config.hidden;
    info["feed_forward"] = config.feed_forward;
    info["heads"] = config.heads;
    info["kv_heads"] = config.kv_heads;
    info["head_dim"] = config.head_dim;
    info["window"] = config.window;
    info["vocabulary"] = config.vocabulary;
    info["context_length"] = config.context_length;
    info["trained_context_length"] = config.trained_context_length;
    info["rope_scaling"] = rope_scaling_name(config.rope.scaling);
    return info;
}

nb::list gguf_tensors(const Gguf& file) {
    nb::list result;
    for (const GgufTensor& tensor : file.tensors()) {
        nb::list shape;
        for (int32_t d = 0; d < tensor.dimension_count; d++)
            shape.append(tensor.dimensions[static_cast<size_t>(d)]);
        result.append(nb::make_tuple(text_object(tensor.name), tensor_type_name(tensor.type),
                                     nb::tuple(shape),
                                     std::max<uint64_t>(tensor.data.size(), tensor.source_bytes)));
    }
    return result;
}

// What a model is, and what it would take if it was loaded with these settings.
nb::dict plan_info(const Gguf& file, bool exact, int32_t context_length,
                   const std::string& rope_scaling, double rope_factor) {
    ModelPlan plan;
    raise_if_error(plan_model(file, {context_length, rope_scaling, rope_factor}, exact, &plan));
    nb::dict info = config_info(plan.config);
    info["weight_bytes"] = plan.weight_bytes;
    info["kv_bytes_per_token"] = plan.kv_page_bytes / limits::PAGE_TOKENS;
    return info;
}

// Names of the types of its tensors that nothing here computes with.
nb::list unsupported_types(const Gguf& file) {
    std::set<std::string> names;
    for (const GgufTensor& tensor : file.tensors())
        if (!is_supported(tensor.type)) names.insert(tensor_type_name(tensor.type));
    nb::list result;
    for (const std::string& name : names) result.append(name);
    return result;
}

nb::object gguf_packed(const Gguf& file) {
    if (file.packed() == nullptr) return nb::none();
    nb::dict info;
    info["exact"] = file.packed()->form.exact;
    info["quantize"] = quantise_name(file.packed()->form.quantise);
    info["weight_bytes"] = file.packed()->weights.size();
    return info;
}

using Progress = std::function<void(float)>;

Quantise quantise_from(const std::string& name) {
    Quantise quantise;
    if (!quantise_from_name(name, &quantise)) throw CoreError("quantize: not int8 or int4");
    return quantise;
}

void convert(const std::string& source, const std::string& target, bool exact,
             const std::string& quantize, bool replace, int32_t threads, const Gguf* joined,
             const std::string& text, const std::optional<Progress>& progress) {
    ConvertOptions options;
    options.form = {exact, quantise_from(quantize)};
    if (exact && options.form.quantise != Quantise::none)
        throw CoreError("--exact keeps weights in fp32: leave it or --quantize out");
    if (threads < 0 || threads > limits::COMPUTE_THREADS_MAX)
        throw CoreError("threads: not in [0, COMPUTE_THREADS_MAX]");
    options.replace = replace;
    options.threads = threads;
    if (progress) options.progress = *progress;
    with_threads([&] {
        raise_if_error(joined == nullptr ? convert_model(source, target, options)
                                         : convert_joined(*joined, source, text, target, options));
    });
}

void bind_gguf(nb::module_& m) {
    nb::class_<Gguf>(m, "Gguf")
        .def(
            "__init__",
            [](Gguf* self, const std::string& path, bool any_type) {
                new (self) Gguf(open_gguf(path, any_type));
            },
            "path"_a, nb::kw_only(), "any_type"_a = false)
        .def_static("join", &join_gguf, "header"_a, "files"_a)
        .def("plan", &plan_info, nb::kw_only(), "exact"_a = false, "context_length"_a = 0,
             "rope_scaling"_a = "", "rope_factor"_a = 0.0)
        .def_prop_ro("version", &Gguf::version)
        .def_prop_ro("parts", &Gguf::part_count)
        .def_prop_ro("unsupported_types", &unsupported_types)
        .def_prop_ro("file_bytes", &Gguf::file_bytes)
        .def_prop_ro("metadata", &gguf_metadata)
        .def_prop_ro("tensors", &gguf_tensors)
        .def_prop_ro("packed", &gguf_packed);
    m.def("convert", &convert, "source"_a, "target"_a, nb::kw_only(), "exact"_a = false,
          "quantize"_a = "", "replace"_a = false, "threads"_a = 0, "joined"_a = nb::none(),
          "text"_a = "", "progress"_a = nb::none());
    m.def(
        "verify_packed", [](const std::string& path) { raise_if_error(verify_packed(path)); },
        "path"_a, nb::call_guard<nb::gil_scoped_release>());
}

// ---- Model -----------------------------------------------------------------------------------
Sharing sharing_from(const std::string& name) {
    if (name == "auto") return Sharing::where_free;
    if (name == "always") return Sharing::always;
    if (name == "never") return Sharing::never;
    throw CoreError("share_weights: not auto, always or never");
}

cpu::KvType kv_type_from(const std::string& name) {
    for (cpu::KvType type : {cpu::KvType::bf16, cpu::KvType::int8})
        if (name == cpu::kv_type_name(type)) return type;
    throw CoreError("kv: not bf16 or int8");
}

// (name in the file, target, type, rows, columns, offset, factor)
using AdapterTensorTuple =
    std::tuple<std::string, std::string, std::string, uint64_t, uint64_t, uint64_t, double>;
// (name, path, tensors)
using AdapterTuple = std::tuple<std::string, std::string, std::vector<AdapterTensorTuple>>;

AdapterSource source_from(const AdapterTuple& adapter) {
    AdapterSource source = {std::get<0>(adapter), std::get<1>(adapter), {}};
    for (const auto& [name, target, type, rows, columns, offset, factor] : std::get<2>(adapter)) {
        TensorType known = TensorType::f32;
        if (type == "F16") known = TensorType::f16;
        if (type == "BF16") known = TensorType::bf16;
        if (type != tensor_type_name(known))
            throw CoreError("adapter '" + source.name + "': tensor '" + name +
                            "' is not of F32, F16 or BF16");
        source.tensors.push_back({name, target, known, rows, columns, offset, factor});
    }
    return source;
}

std::shared_ptr<LoadedModel>
load(const std::string& path, bool exact, const std::string& quantize, bool batch_invariant,
     int32_t context_length, const std::string& rope_scaling, double rope_factor, int32_t threads,
     const std::string& isa, const std::string& kv, int64_t kv_bytes, int32_t engines,
     const std::string& share_weights, int shared_weights_fd,
     const std::vector<AdapterTuple>& adapters, const nb::bytes& header, const Files& files,
     const std::optional<Progress>& progress) {
    LoadOptions options;
    options.header = std::string(header.c_str(), header.size());
    options.files = file_parts(files);
    options.exact = exact;
    options.quantise = quantise_from(quantize);
    options.batch_invariant = batch_invariant;
    options.overrides.context_length = context_length;
    options.overrides.rope_scaling = rope_scaling;
    options.overrides.rope_factor = rope_factor;
    options.threads = threads;
    options.isa = isa;
    options.kv_type = kv_type_from(kv);
    options.kv_bytes = kv_bytes;
    options.engines = engines;
    options.share = {sharing_from(share_weights), shared_weights_fd};
    for (const AdapterTuple& adapter : adapters) options.adapters.push_back(source_from(adapter));
    if (progress) options.progress = *progress;
    std::shared_ptr<LoadedModel> model;
    with_threads([&] { raise_if_error(load_model(path, options, &model)); });
    return model;
}

using LogitArray = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

LogitArray logits(const LoadedModel& model, const std::vector<int32_t>& ids, bool decode,
                  int32_t adapter) {
    auto values = std::make_unique<std::vector<float>>();
    Status status;
    {
        nb::gil_scoped_release released;
        status = compute_logits(model, ids, decode ? Arithmetic::generated : Arithmetic::prompt,
                                adapter, values.get());
    }
    raise_if_error(status);
    float* data = values->data();
    nb::capsule owner(values.release(), [](void* pointer) noexcept {
        delete static_cast<std::vector<float>*>(pointer);
    });
    return LogitArray(data, {ids.size(), static_cast<size_t>(model.config.vocabulary)}, owner);
}

nb::dict variant_info(const cpu::Variant& variant) {
    nb::dict info;
    info["isa"] = variant.ops->name;
    info["threads"] = variant.threads;
    return info;
}

} // namespace

nb::dict choice_info(const cpu::Choice& choice) {
    nb::dict info = variant_info(choice.kept);
    nb::list measured;
    for (const cpu::Variant& variant : choice.measured) {
        nb::dict row = variant_info(variant);
        row["least_ms"] = variant.least_ns / NS_PER_MS;
        measured.append(row);
    }
    info["measured"] = measured;
    return info;
}

namespace {

nb::list adapter_infos(const Adapters& adapters) {
    nb::list infos;
    for (const Adapter& adapter : adapters.all) {
        nb::dict info;
        info["name"] = adapter.name;
        info["rank"] = adapter.rank;
        info["parameters"] = adapter.parameters;
        info["bytes"] = adapter.bytes;
        infos.append(info);
    }
    return infos;
}

nb::dict model_info(const LoadedModel& model) {
    const ModelConfig& config = model.config;
    const cpu::KvArena& kv = model.model->kv();
    nb::dict info = config_info(config);
    info["weight_bytes"] = model.weights.bytes;
    info["exact"] = model.exact;
    info["quantize"] = quantise_name(model.quantise);
    info["isa"] = model.model->ops().name;
    info["threads"] = model.pool->size();
    info["few_rows"] = choice_info(model.model->choice(cpu::Phase::few_rows));
    info["many_rows"] = choice_info(model.model->choice(cpu::Phase::many_rows));
    info["kv_type"] = cpu::kv_type_name(kv.layout.type);
    info["kv_pages"] = model.model->kv_pages();
    info["kv_bytes"] = int64_t{kv.pages} * cpu::KvArena::page_bytes(config, kv.layout.type);
    info["same_arithmetic"] = model.model->same_arithmetic();
    info["weights_shared"] = model.weights.shared.data() != nullptr;
    info["weights_mapped"] = model.weights.file != nullptr;
    info["weights_reused"] = model.weights.reused;
    info["weights_huge_pages"] = model.weights.shared.huge_pages();
    info["adapters"] = adapter_infos(model.adapters);
    info["load_seconds"] = model.load_seconds;
    info["resident_loop"] = true;
    info["compute_path"] = "direct-kernel";
    return info;
}

// ---- the machine -----------------------------------------------------------------------------
nb::dict probe() {
    cpu::CpuReport report = cpu::probe_cpu();
    nb::list features, runs;
    for (const std::string& feature : report.features) features.append(feature);
    for (cpu::Isa isa : report.runs) runs.append(cpu::isa_name(isa));
    nb::dict result;
    result["cpu"] = report.model;
    result["cores"] = report.cores;
    result["features"] = features;
    result["amx_permitted"] = report.amx_permitted;
    result["isas"] = runs;
    result["best_isa"] = cpu::isa_name(report.best);
    result["l1_data_bytes"] = report.l1_data_bytes;
    result["l2_bytes"] = report.l2_bytes;
    result["l3_bytes"] = report.l3_bytes;
    result["memory_bytes"] = report.memory_bytes;
    result["transparent_huge_pages"] = report.transparent_huge_pages;
    result["huge_page_bytes"] = report.huge_page_bytes;
    return result;
}

nb::dict group_limits(const cpu::ReadFile& read) {
    cpu::GroupLimits limits = cpu::group_limits(read);
    nb::dict result;
    result["memory_bytes"] = limits.memory_bytes;
    result["memory_free_bytes"] = limits.memory_free_bytes;
    result["cores"] = limits.cores;
    return result;
}

} // namespace

void bind_model(nb::module_& m) {
    bind_gguf(m);
    nb::class_<LoadedModel>(m, "Model")
        .def_static("load", &load, "path"_a, nb::kw_only(), "exact"_a = false, "quantize"_a = "",
                    "batch_invariant"_a = true, "context_length"_a = 0, "rope_scaling"_a = "",
                    "rope_factor"_a = 0.0, "threads"_a = 0, "isa"_a = "", "kv"_a = "bf16",
                    "kv_bytes"_a = 0, "engines"_a = 1, "share_weights"_a = "never",
                    "shared_weights_fd"_a = -1, "adapters"_a = nb::list(),
                    "header"_a = nb::bytes("", 0), "files"_a = Files(), "progress"_a = nb::none())
        .def_prop_ro("weights_fd",
                     [](const LoadedModel& model) { return model.weights.shared.fd(); })
        .def_prop_ro("info", &model_info)
        .def("logits", &logits, "ids"_a, nb::kw_only(), "decode"_a = false, "adapter"_a = 0);
    m.def("probe", &probe);
    m.def("group_limits", &group_limits, "read"_a);
    m.def("group_folders", &cpu::group_folders, "read"_a, "controller"_a);
    m.def("heap_allocations", &cpu::heap_allocations);
}

} // namespace sublimate
