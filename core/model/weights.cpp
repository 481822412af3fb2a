// Loading weights: check every tensor's name and shape, lay the arena out, then pack on all
// threads.
#include "weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_set>

#include "../check.h"
#include "../loop/page_hash.h"
#include "pack.h"
#include "quantise.h"

namespace sublimate {

namespace {

constexpr int64_t ARENA_ALIGNMENT_BYTES = 64;
constexpr int32_t PANELS_PER_ITEM = 8;
// Of the part that sees images, which some files have beside the one that writes text.
constexpr const char* IMAGE_TENSORS[] = {"v.", "mm."};

// In front of shared weights. Everything that decides what lies behind it; all words, no padding.
struct SharedHeader {
    uint64_t magic = 0x5448474957425553; // "SUBWIGHT"
    uint64_t version = 2;
    uint64_t exact = 0; // WeightForm
    uint64_t quantise = 0;
    int64_t bytes = 0;     // behind the header
    uint64_t contents = 0; // digest of what lies where, in which form
    FileIdentity file;
};
static_assert(sizeof(SharedHeader) == 11 * sizeof(uint64_t));
constexpr int64_t SHARED_HEADER_BYTES = 128;
static_assert(sizeof(SharedHeader) <= SHARED_HEADER_BYTES &&
              SHARED_HEADER_BYTES % ARENA_ALIGNMENT_BYTES == 0);

// One tensor on its way into the arena.
struct PackJob {
    const GgufTensor* tensor;
    cpu::PackedMatrix shape; // data set once the arena exists
    int64_t offset;          // of panel 0
    RowOrder order;
    bool vector; // plain floats, not panels
    float added; // to each of a vector
    Quantise quantise;
};

// Some rows of a tensor that holds several matrices.
struct Part {
    int32_t rows;
    RowOrder order;
    size_t* index; // of its job
};

std::vector<float> vector_of(const PackJob& job) {
    std::vector<float> in_file = tensor_to_floats(*job.tensor);
    std::vector<float> floats(in_file.size());
    for (size_t i = 0; i < floats.size(); i++)
        floats[i] = in_file[static_cast<size_t>(job.order(static_cast<int32_t>(i)))] + job.added;
    return floats;
}

class WeightLoader {
public:
    WeightLoader(const Gguf& file, const ModelConfig& config, const WeightForm& form,
                 Weights* weights)
        : file_(file), packed_(file.packed()), config_(config), form_(form), weights_(*weights) {}

    Status plan() {
        RETURN_IF_ERROR(packed_ != nullptr ? check_form(*packed_, form_)
                                           : check_quantises(file_, form_.quantise));
        if (packed_ != nullptr) form_ = packed_->form;
        layer_jobs_.resize(static_cast<size_t>(config_.layers));
        separate_experts_ =
            config_.experts > 0 && file_.tensor("blk.0.ffn_gate.0.weight") != nullptr;
        RETURN_IF_ERROR(add("token_embd.weight", config_.vocabulary, config_.hidden, &embedding_));
        for (int32_t i = 0; i < config_.layers; i++) {
            LayerJobs& jobs = layer_jobs_[static_cast<size_t>(i)];
            std::string prefix = "blk." + std::to_string(i) + ".";
            RETURN_IF_ERROR(plan_attention(prefix, &jobs));
            RETURN_IF_ERROR(plan_feed_forward(prefix, &jobs));
        }
        RETURN_IF_ERROR(add_norm("output_norm.weight", config_.hidden, {}, &final_norm_));
        head_ = embedding_;
        if (!config_.tied_embeddings)
            RETURN_IF_ERROR(add("output.weight", config_.vocabulary, config_.hidden, &head_));
        RETURN_IF_ERROR(refuse_unknown());
        return check_packed();
    }

    // The weights of a packed file, where they are.
    void map() {
        CHECK(packed_ != nullptr && file_.mapping() != nullptr);
        for (PackJob& job : jobs_) job.shape.data = packed_->weights.data() + job.offset;
        file_.mapping()->expect_reads(packed_->weights);
        weights_.file = file_.mapping();
        publish(packed_->weights.data());
    }

    int64_t arena_bytes() const { return arena_bytes_; } // once planned

    // True: another process has packed just this, and it is mapped now.
    bool reuse(int fd) {
        SharedMemory mapped;
        if (fd < 0 || !SharedMemory::attach(fd, &mapped).ok()) return false;
        const SharedHeader wanted = header();
        if (mapped.size() < SHARED_HEADER_BYTES + arena_bytes_ ||
            std::memcmp(mapped.data(), &wanted, sizeof wanted) != 0)
            return false;
        const std::byte* base = mapped.data() + SHARED_HEADER_BYTES;
        for (PackJob& job : jobs_) {
            if (!sample_equals(job, base + job.offset)) return false;
            job.shape.data = base + job.offset;
        }
        weights_.shared = std::move(mapped);
        weights_.reused = true;
        publish(base);
        return true;
    }

    Status pack(Sharing sharing, cpu::ThreadPool& pool,
                const std::function<void(float)>& progress) {
        std::byte* base = nullptr;
        RETURN_IF_ERROR(allocate(sharing, &base));
        int64_t done_bytes = 0;
        for (PackJob& job : jobs_) {
            job.shape.data = base + job.offset;
            if (job.vector) {
                std::vector<float> floats = vector_of(job);
                std::memcpy(base + job.offset, floats.data(), floats.size() * sizeof(float));
                continue;
            }
            std::atomic<bool> fits = true;
            // A thread packs the range it will mostly compute: first touch decides where memory
            // lies.
            int32_t blocks = (job.shape.panels + PANELS_PER_ITEM - 1) / PANELS_PER_ITEM;
            pool.parallel_for(blocks, [&](int32_t block) {
                int32_t begin = block * PANELS_PER_ITEM;
                int32_t end = std::min(begin + PANELS_PER_ITEM, job.shape.panels);
                if (!pack_some(job, begin, end, base + job.offset + begin * job.shape.panel_bytes))
                    fits = false;
            });
            if (!fits)
                return Status::error("tensor '" + std::string(job.tensor->name) +
                                     "' has weights that no scale of 16 bits fits: load the model "
                                     "without --quantize");
            done_bytes += job.shape.panels * job.shape.panel_bytes;
            if (progress) progress(static_cast<float>(double(done_bytes) / double(arena_bytes_)));
        }
        if (weights_.shared.data() != nullptr) {
            const SharedHeader header = this->header();
            std::memcpy(weights_.shared.data(), &header, sizeof header);
            RETURN_IF_ERROR(weights_.shared.seal());
        }
        publish(base);
        return Status::success();
    }

private:
    static bool pack_some(const PackJob& job, int32_t begin, int32_t end, std::byte* data) {
        if (job.quantise != Quantise::none)
            return quantise_panels(*job.tensor, job.shape, begin, end, data, job.order);
        pack_panels(*job.tensor, job.shape, begin, end, data, job.order);
        return true;
    }

    static constexpr size_t NONE = SIZE_MAX; // a tensor that the architecture does not have

    struct LayerJobs {
        size_t attention_norm = NONE, query, key, value, attention_output;
        size_t query_bias = NONE, key_bias = NONE, value_bias = NONE;
        size_t query_norm = NONE, key_norm = NONE, attention_post_norm = NONE;
        size_t feed_forward_norm = NONE, gate, up, down, feed_forward_post_norm = NONE;
        size_t router = NONE;
    };

    Status plan_attention(const std::string& prefix, LayerJobs* jobs) {
        const Architecture& architecture = *config_.architecture;
        const int32_t hidden = config_.hidden;
        const int32_t queries = config_.query_columns();
        const int32_t keys = config_.kv_columns();
        const RowOrder pairs = rotation_pairs();
        if (architecture.norms != NormPlace::after)
            RETURN_IF_ERROR(
                add_norm(prefix + "attn_norm.weight", hidden, {}, &jobs->attention_norm));
        if (architecture.fused_tensors) {
            RETURN_IF_ERROR(add_parts(prefix + "attn_qkv.weight", hidden,
                                      {{queries, pairs, &jobs->query},
                                       {keys, pairs, &jobs->key},
                                       {keys, {}, &jobs->value}}));
        } else {
            RETURN_IF_ERROR(add(prefix + "attn_q.weight", queries, hidden, &jobs->query, pairs));
            RETURN_IF_ERROR(add(prefix + "attn_k.weight", keys, hidden, &jobs->key, pairs));
            RETURN_IF_ERROR(add(prefix + "attn_v.weight", keys, hidden, &jobs->value));
        }
        if (architecture.query_key_value_bias) {
            RETURN_IF_ERROR(add_vector(prefix + "attn_q.bias", queries, pairs, &jobs->query_bias));
            RETURN_IF_ERROR(add_vector(prefix + "attn_k.bias", keys, pairs, &jobs->key_bias));
            RETURN_IF_ERROR(add_vector(prefix + "attn_v.bias", keys, {}, &jobs->value_bias));
        }
        if (architecture.query_key_norm != QueryKeyNorm::none) {
            bool each = architecture.query_key_norm == QueryKeyNorm::head;
            RETURN_IF_ERROR(add_norm(prefix + "attn_q_norm.weight",
                                     each ? config_.head_dim : queries, pairs, &jobs->query_norm));
            RETURN_IF_ERROR(add_norm(prefix + "attn_k_norm.weight", each ? config_.head_dim : keys,
                                     pairs, &jobs->key_norm));
        }
        RETURN_IF_ERROR(
            add(prefix + "attn_output.weight", hidden, queries, &jobs->attention_output));
        if (architecture.norms == NormPlace::before) return Status::success();
        return add_norm(prefix + "post_attention_norm.weight", hidden, {},
                        &jobs->attention_post_norm);
    }

    Status plan_feed_forward(const std::string& prefix, LayerJobs* jobs) {
        const Architecture& architecture = *config_.architecture;
        const int32_t hidden = config_.hidden;
        const int32_t inner = config_.feed_forward;
        if (architecture.norms != NormPlace::after)
            RETURN_IF_ERROR(
                add_norm(prefix + "ffn_norm.weight", hidden, {}, &jobs->feed_forward_norm));
        if (architecture.has_experts) return plan_experts(prefix, jobs);
        if (architecture.fused_tensors) {
            RETURN_IF_ERROR(add_parts(prefix + "ffn_up.weight", hidden,
                                      {{inner, {}, &jobs->gate}, {inner, {}, &jobs->up}}));
        } else {
            RETURN_IF_ERROR(add(prefix + "ffn_gate.weight", inner, hidden, &jobs->gate));
            RETURN_IF_ERROR(add(prefix + "ffn_up.weight", inner, hidden, &jobs->up));
        }
        RETURN_IF_ERROR(add(prefix + "ffn_down.weight", hidden, inner, &jobs->down));
        if (architecture.norms == NormPlace::before) return Status::success();
        return add_norm(prefix + "post_ffw_norm.weight", hidden, {}, &jobs->feed_forward_post_norm);
    }

    // The router in fp32 whatever the file has: it decides what a row is multiplied with at all.
    Status plan_experts(const std::string& prefix, LayerJobs* jobs) {
        CHECK(config_.architecture->norms == NormPlace::before);
        const int32_t hidden = config_.hidden;
        const int32_t inner = config_.feed_forward;
        const int32_t experts = config_.experts;
        RETURN_IF_ERROR(
            add(prefix + "ffn_gate_inp.weight", experts, hidden, &jobs->router, {}, true));
        RETURN_IF_ERROR(add_experts(prefix + "ffn_gate", inner, hidden, &jobs->gate));
        RETURN_IF_ERROR(add_experts(prefix + "ffn_up", inner, hidden, &jobs->up));
        return add_experts(prefix + "ffn_down", hidden, inner, &jobs->down);
    }

    // Those of all experts as one matrix. A file has one tensor of them, or one of each, which are
    // packed side by side.
    Status add_experts(const std::string& name, int32_t rows, int32_t columns, size_t* index) {
        const int32_t experts = config_.experts;
        if (!separate_experts_) return add(name + "_exps.weight", experts * rows, columns, index);
        RETURN_IF_ERROR(add(name + ".0.weight", rows, columns, index));
        const PackJob first = jobs_[*index];
        int64_t end = first.offset;
        for (int32_t expert = 1; expert < experts; expert++) {
            end += first.shape.panels * first.shape.panel_bytes;
            const std::string own = name + "." + std::to_string(expert) + ".weight";
            size_t job = 0;
            RETURN_IF_ERROR(add(own, rows, columns, &job));
            const cpu::PackedMatrix& shape = jobs_[job].shape;
            if (shape.kind != first.shape.kind || shape.affine != first.shape.affine ||
                shape.offset != first.shape.offset || jobs_[job].offset != end)
                return Status::error("tensor '" + own + "' cannot lie beside the one before it");
        }
        return Status::success();
    }

    cpu::PackedMatrix all_experts(size_t job) const {
        cpu::PackedMatrix all = matrix(job);
        if (separate_experts_) {
            all.rows *= config_.experts;
            all.panels *= config_.experts;
        }
        return all;
    }

    RowOrder rotation_pairs() const {
        if (!config_.rotates_halves) return {};
        return {config_.head_dim, config_.rope.dimension};
    }

    SharedHeader header() const {
        SharedHeader header;
        header.exact = form_.exact ? 1 : 0;
        header.quantise = static_cast<uint64_t>(form_.quantise);
        header.bytes = arena_bytes_;
        header.file = file_.identity();
        auto add = [&](int64_t word) {
            header.contents = mix_hash(header.contents ^ static_cast<uint64_t>(word));
        };
        for (const PackJob& job : jobs_) {
            const cpu::PackedMatrix& m = job.shape;
            for (int64_t word : {job.offset, int64_t{job.vector}, static_cast<int64_t>(m.kind),
                                 int64_t{m.rows}, int64_t{m.columns}, int64_t{m.panels},
                                 int64_t{m.offset}, int64_t{m.affine}, m.panel_bytes})
                add(word);
        }
        return header;
    }

    // The first and the last panel, packed anew: a build that packs in another way, or another file
    // with the same times, shows here.
    static bool sample_equals(const PackJob& job, const std::byte* data) {
        if (job.vector) {
            std::vector<float> floats = vector_of(job);
            return std::memcmp(data, floats.data(), floats.size() * sizeof(float)) == 0;
        }
        const cpu::PackedMatrix& shape = job.shape;
        auto bytes = static_cast<size_t>(shape.panel_bytes);
        for (int32_t panel : {0, shape.panels - 1}) {
            std::vector<std::byte> fresh(bytes);
            if (!pack_some(job, panel, panel + 1, fresh.data()) ||
                std::memcmp(data + panel * shape.panel_bytes, fresh.data(), bytes) != 0)
                return false;
        }
        return true;
    }

    Status allocate(Sharing sharing, std::byte** base) {
        bool wanted =
            sharing == Sharing::always || (sharing == Sharing::where_free && one_memory_node());
        if (wanted) {
            Status status = SharedMemory::create(SHARED_HEADER_BYTES + arena_bytes_, "weights",
                                                 &weights_.shared);
            bool kept = status.ok() && (sharing == Sharing::always || weights_.shared.huge_pages());
            if (kept) {
                *base = weights_.shared.data() + SHARED_HEADER_BYTES;
                return Status::success();
            }
            if (sharing == Sharing::always) return status;
            weights_.shared = SharedMemory();
        }
        RETURN_IF_ERROR(AnonymousMemory::map(arena_bytes_, "weights", &weights_.own));
        *base = weights_.own.data();
        return Status::success();
    }

    Status find(const std::string& name, uint64_t rows, uint64_t columns,
                const GgufTensor** tensor) {
        *tensor = file_.tensor(name);
        if (*tensor == nullptr) return Status::error("the file has no tensor '" + name + "'");
        if ((*tensor)->columns() != columns || (*tensor)->rows() != rows)
            return Status::error("tensor '" + name + "' is " +
                                 std::to_string((*tensor)->columns()) + " x " +
                                 std::to_string((*tensor)->rows()) + ", expected " +
                                 std::to_string(columns) + " x " + std::to_string(rows));
        known_.insert((*tensor)->name);
        return Status::success();
    }

    void reserve(int64_t bytes, PackJob* job) {
        job->offset = arena_bytes_;
        // Sizes come from tensors that lie inside the file, at most 8 times expanded, or have the
        // shapes of a model within limits.h: no wrap.
        arena_bytes_ +=
            (bytes + ARENA_ALIGNMENT_BYTES - 1) / ARENA_ALIGNMENT_BYTES * ARENA_ALIGNMENT_BYTES;
    }

    Status add(const std::string& name, int32_t rows, int32_t columns, size_t* index,
               const RowOrder& order = {}, bool exact = false) {
        const GgufTensor* tensor = nullptr;
        RETURN_IF_ERROR(
            find(name, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), &tensor));
        add_matrix(tensor, order, index, exact);
        return Status::success();
    }

    cpu::PackedMatrix shape_of(const PackJob& job, bool exact) {
        if (packed_ != nullptr) return next_shape(*job.tensor);
        if (job.quantise != Quantise::none) return quantised_shape(*job.tensor, job.quantise);
        return packed_shape(*job.tensor, form_.exact || exact);
    }

    // Of a packed file, which says the kind of each matrix in turn.
    cpu::PackedMatrix next_shape(const GgufTensor& tensor) {
        auto rows = static_cast<int32_t>(tensor.rows());
        auto columns = static_cast<int32_t>(tensor.columns());
        const PackedEntry entry = next_entry(false);
        auto kind = static_cast<cpu::WeightKind>(entry.kind);
        int32_t unit = cpu::is_k_kind(kind)      ? cpu::SUPER_COLUMNS
                       : cpu::is_quantised(kind) ? cpu::GROUP_COLUMNS
                                                 : 1;
        if (columns % unit != 0) {
            fits_entries_ = false;
            kind = cpu::WeightKind::f32;
        }
        return shape_of_kind(kind, rows, columns, entry.offset, entry.affine != 0);
    }

    PackedEntry next_entry(bool is_vector) {
        size_t at = jobs_.size();
        PackedEntry entry = {};
        if (at < packed_->entries.size()) entry = packed_->entries[at];
        fits_entries_ =
            fits_entries_ && at < packed_->entries.size() && (entry.is_vector != 0) == is_vector;
        return entry;
    }

    // exact: in fp32 whatever the form of the others.
    void add_matrix(const GgufTensor* tensor, const RowOrder& order, size_t* index,
                    bool exact = false) {
        PackJob job = {};
        job.tensor = tensor;
        job.order = order;
        bool as_it_is = exact || packed_ != nullptr;
        job.quantise = as_it_is ? Quantise::none : quantises(*tensor, form_.quantise);
        job.shape = shape_of(job, exact);
        fits_entries_ = fits_entries_ && (!exact || job.shape.kind == cpu::WeightKind::f32);
        reserve(job.shape.panels * job.shape.panel_bytes, &job);
        *index = jobs_.size();
        jobs_.push_back(job);
    }

    // The rows of one tensor, one part after the other.
    Status add_parts(const std::string& name, int32_t columns, std::initializer_list<Part> parts) {
        uint64_t rows = 0;
        for (const Part& part : parts) rows += static_cast<uint64_t>(part.rows);
        const GgufTensor* whole = nullptr;
        RETURN_IF_ERROR(find(name, rows, static_cast<uint64_t>(columns), &whole));
        if (whole->dimensions[1] != rows)
            return Status::error("tensor '" + name + "' has " +
                                 std::to_string(whole->dimension_count) + " dimensions, not 2");
        uint64_t at = 0;
        for (const Part& part : parts) {
            GgufTensor& some = parts_.emplace_back(*whole);
            some.dimensions[1] = static_cast<uint64_t>(part.rows);
            some.data = whole->data.subspan(at * whole->row_bytes(),
                                            some.dimensions[1] * whole->row_bytes());
            CHECK(some.dimensions[2] == 1 && some.dimensions[3] == 1);
            add_matrix(&some, part.order, part.index);
            at += some.dimensions[1];
        }
        return Status::success();
    }

    Status add_vector(const std::string& name, int32_t count, const RowOrder& order,
                      size_t* index) {
        PackJob job = {};
        RETURN_IF_ERROR(find(name, 1, static_cast<uint64_t>(count), &job.tensor));
        job.vector = true;
        job.order = order;
        if (packed_ != nullptr) static_cast<void>(next_entry(true));
        reserve(int64_t{count} * int64_t{sizeof(float)}, &job);
        *index = jobs_.size();
        jobs_.push_back(job);
        return Status::success();
    }

    Status add_norm(const std::string& name, int32_t count, const RowOrder& order, size_t* index) {
        RETURN_IF_ERROR(add_vector(name, count, order, index));
        jobs_.back().added = config_.norm_offset;
        return Status::success();
    }

    // Before anything is read by what the entries say.
    Status check_packed() const {
        if (packed_ == nullptr) return Status::success();
        if (fits_entries_ && jobs_.size() == packed_->entries.size() &&
            static_cast<uint64_t>(arena_bytes_) == packed_->weights.size())
            return Status::success();
        return Status::error("the packed weights are not those that the file's metadata "
                             "describes: convert the model again with `sublimate convert`");
    }

    // A tensor that nothing reads (a bias, an expert) would change what the model computes.
    Status refuse_unknown() const {
        for (const GgufTensor& tensor : file_.tensors()) {
            bool known = known_.contains(tensor.name) || is_rope_tensor(tensor.name);
            for (const char* image : IMAGE_TENSORS) known = known || tensor.name.starts_with(image);
            if (!known)
                return Status::error("tensor " + printable(tensor.name) +
                                     " is not part of a supported " + config_.architecture->name +
                                     " model");
        }
        return Status::success();
    }

    const cpu::PackedMatrix& matrix(size_t job) const { return jobs_[job].shape; }
    const float* vector(size_t job) const {
        if (job == NONE) return nullptr;
        return reinterpret_cast<const float*>(weights_.data + jobs_[job].offset);
    }

    // Jobs that are neighbours in the arena and of one kind become one matrix: their panels follow
    // each other.
    FusedProjection fuse(std::initializer_list<size_t> jobs) const {
        FusedProjection fused;
        int32_t outputs = 0;
        for (size_t job : jobs) {
            const cpu::PackedMatrix& next = matrix(job);
            cpu::PackedMatrix* last =
                fused.part_count > 0 ? &fused.parts[fused.part_count - 1] : nullptr;
            bool joins = last != nullptr && last->kind == next.kind &&
                         last->affine == next.affine && last->offset == next.offset &&
                         last->rows % cpu::PANEL_ROWS == 0 &&
                         last->data + last->panels * last->panel_bytes == next.data;
            if (joins) {
                last->rows += next.rows;
                last->panels += next.panels;
            } else {
                fused.parts[fused.part_count] = next;
                fused.first_output[fused.part_count] = outputs;
                fused.part_count += 1;
            }
            outputs += next.rows;
        }
        return fused;
    }

    // Whether a vector begins where another one ends.
    bool follow(size_t first, size_t second) const {
        auto bytes = static_cast<int64_t>(jobs_[first].tensor->columns() * sizeof(float));
        return jobs_[second].offset == jobs_[first].offset + bytes;
    }

    void publish(const std::byte* base) {
        CHECK(base != nullptr && weights_.layers.empty());
        weights_.data = base;
        weights_.bytes = arena_bytes_;
        for (const PackJob& job : jobs_)
            weights_.entries.push_back({job.vector, static_cast<int32_t>(job.shape.kind),
                                        job.shape.offset, job.shape.affine});
        weights_.embedding = matrix(embedding_);
        weights_.head = matrix(head_);
        weights_.final_norm = vector(final_norm_);
        for (const LayerJobs& jobs : layer_jobs_) {
            LayerWeights layer;
            layer.attention_norm = vector(jobs.attention_norm);
            layer.query_key_value = fuse({jobs.query, jobs.key, jobs.value});
            layer.query_key_value.bias = vector(jobs.query_bias);
            CHECK(jobs.query_bias == NONE || follow(jobs.query_bias, jobs.key_bias));
            CHECK(jobs.query_bias == NONE || follow(jobs.key_bias, jobs.value_bias));
            layer.query_norm = vector(jobs.query_norm);
            layer.key_norm = vector(jobs.key_norm);
            layer.attention_post_norm = vector(jobs.attention_post_norm);
            layer.feed_forward_post_norm = vector(jobs.feed_forward_post_norm);
            layer.attention_output = matrix(jobs.attention_output);
            layer.feed_forward_norm = vector(jobs.feed_forward_norm);
            if (jobs.router != NONE) layer.router = matrix(jobs.router);
            layer.gate = all_experts(jobs.gate);
            layer.up = all_experts(jobs.up);
            layer.down = all_experts(jobs.down);
            weights_.layers.push_back(layer);
        }
    }

    const Gguf& file_;
    const PackedFile* const packed_; // null: the file's tensors are to be packed
    const ModelConfig& config_;
    WeightForm form_;
    Weights& weights_;
    std::vector<PackJob> jobs_; // in the order of the arena
    std::vector<LayerJobs> layer_jobs_;
    size_t embedding_ = 0, final_norm_ = 0, head_ = 0;
    std::deque<GgufTensor> parts_; // whose addresses stay
    std::unordered_set<std::string_view> known_;
    int64_t arena_bytes_ = 0;
    bool fits_entries_ = true;      // the packed file's, so far
    bool separate_experts_ = false; // each is a tensor of its own
};

} // namespace

bool Weights::have_half_scales() const {
    return std::any_of(entries.begin(), entries.end(), [](const PackedEntry& entry) {
        return cpu::has_half_scales(static_cast<cpu::WeightKind>(entry.kind));
    });
}

Status load_weights(const Gguf& file, const ModelConfig& config, const WeightForm& form,
                    const ShareOptions& share, cpu::ThreadPool& pool,
                    const std::function<void(float)>& progress, Weights* weights) {
    Weights fresh;
    WeightLoader loader(file, config, form, &fresh);
    RETURN_IF_ERROR(loader.plan());
    if (file.packed() != nullptr)
        loader.map();
    else if (!loader.reuse(share.fd))
        RETURN_IF_ERROR(loader.pack(share.sharing, pool, progress));
    if (progress) progress(1.0f);
    *weights = std::move(fresh);
    return Status::success();
}

Status plan_weights(const Gguf& file, const ModelConfig& config, const WeightForm& form,
                    int64_t* bytes) {
    Weights unused;
    WeightLoader loader(file, config, file.packed() != nullptr ? file.packed()->form : form,
                        &unused);
    RETURN_IF_ERROR(loader.plan());
    *bytes = loader.arena_bytes();
    return Status::success();
}

} // namespace sublimate
