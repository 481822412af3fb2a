// The model step on the CPU (concept Model of loop/step.h): rows in, KV pages and logits out. A
// step is a fixed list of phases that all threads walk together, with a barrier between phases that
// depend on each other; nothing is allocated, and no result depends on which rows share the step or
// on the number of threads.
//
// A row's arithmetic (see Arithmetic) selects the matmul of the layers. The logits of every row
// come from the generated arithmetic, so that the largest matrix is read once a step.
//
// Quantised weights meet int8 activations. In a sequence's first positions, which all later ones
// look at, a row is carried in two int8 rows that add up to it; so is what enters and leaves
// attention (query, key and value projections, output projection) in the first layers, whose
// rounding passes through all others. One int8 row from the fifth position on costs up to 0.075 of
// a reference text's mean log-likelihood, this 0.014.
//
// defines: CpuModel
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../cpu/ops.h"
#include "../cpu/threads.h"
#include "../loop/sampler_ops.h"
#include "../loop/step.h"
#include "adapters.h"
#include "buffers.h"
#include "config.h"
#include "plan.h"
#include "routing.h"
#include "variant.h"
#include "weights.h"

namespace sublimate::cpu {

class CpuModel {
public:
    // `config`, `weights` and `pool` outlive the model. kv_bytes > 0.
    static Status create(const ModelConfig& config, const Weights& weights, const RopeTables& ropes,
                         const Ops& ops, KvType kv_type, int64_t kv_bytes, ThreadPool& pool,
                         std::unique_ptr<CpuModel>* model);

    // Without it, generated rows take the prompt's matmul in steps that have many of them: faster
    // where the two differ, and their bits depend on the size of the batch.
    void set_batch_invariant(bool batch_invariant) { batch_invariant_ = batch_invariant; }

    // What rows may ask for by its number, from 1; outlives the model. Before the first step.
    Status use_adapters(const Adapters& adapters);
    int32_t adapter_count() const { return adapters_ == nullptr ? 0 : adapters_->count(); }

    // How steps may run; at first only as they do: on all threads, by the kernels of create. Those
    // of `candidates` give equal bits, and their threads are among thread_counts(pool size).
    void set_candidates(const Candidates& candidates);
    const Candidates& candidates() const { return candidates_; }
    // How the steps of a phase run from now on; one of the candidates.
    void set_choice(Phase phase, const Choice& choice);
    const Choice& choice(Phase phase) const { return choices_[static_cast<size_t>(phase)]; }

    int32_t vocabulary() const { return config_.vocabulary; }
    int32_t context_length() const { return config_.context_length; }
    int32_t kv_pages() const { return kv_.pages; }
    // From now on the memory of pages becomes real ahead of their use. Before any request.
    void populate_ahead() { kv_.populate_ahead(); }
    const KvArena& kv() const { return kv_; }
    const RopeTables& ropes() const { return ropes_; }
    const Ops& ops() const { return *candidates_.ops.front(); }
    // Whether prompt and generated rows give equal bits. If not, the prompt's matmul of quantised
    // weights reads bf16 activations.
    bool same_arithmetic() const {
        return ops().matmul == ops().matmul_prompt && ops().attention == ops().attention_prompt;
    }

    const float* forward(const Step& step);
    int32_t kernels() const { // of the last step; see concept Model
        return static_cast<int32_t>(phase_) | (all_as_prompt_ ? 2 : 0);
    }
    int64_t waited_ns() { return pool_.waited_ns(); }
    void place_threads() { pool_.place(); } // on the thread that will call forward

    template <class Body>
    void for_rows(int32_t count, Body&& body) { // on the threads of the last step
        pool_.parallel_for(plans_->threads(), count, body);
    }
    const SamplerOps& sampler_ops() const { return sampler_ops_; }

private:
    // Rows [begin, end) that one matrix item covers; all of one arithmetic, all sinks or none.
    struct RowBlock {
        int32_t begin, end;
        Arithmetic arithmetic;
        bool sink;
    };
    // Rows of one segment that one attention item covers.
    struct AttentionBlock {
        int32_t segment, first_row, row_count;
    };

    // A matrix whose outputs go to the residual, or to the branch rows, which add_branch adds.
    struct Product {
        const PackedMatrix& matrix;
        int32_t layer_index;
        AdapterPlace place;
        int32_t panels_per_item;
        bool pairs;
        bool to_branch;
    };

    // Rows next to each other that one adapter item covers, all of one adapter.
    struct AdapterRows {
        int32_t adapter, begin, end;
    };

    // What rows become besides f32: nothing, bf16, one int8 row, or two that add up to the row.
    enum class Form { f32, bf16, quantised, pairs };
    struct Rows {
        const ActivationBuffer* plain;
        const ActivationBuffer* pairs;
    };

    CpuModel(const ModelConfig& config, const Weights& weights, const RopeTables& ropes,
             const Ops& ops, ThreadPool& pool);

    // Before the threads start.
    void prepare(const Step& step);
    const PlanTable& plans_for(int32_t threads) const;
    void prepare_arithmetic(const Step& step);
    void prepare_row_blocks(const Step& step);
    void prepare_attention(const Step& step);
    void prepare_adapters(const Step& step);
    int32_t attention_heads(bool single_rows) const;

    // On every thread.
    void run(int32_t thread);
    void run_attention(int32_t thread, int32_t layer_index);
    void run_feed_forward(int32_t thread, int32_t layer_index);
    void run_experts(int32_t thread, int32_t layer_index);
    void run_head(int32_t thread);

    void embed(int32_t row) const;
    void turn(const RopeTable& rope, int32_t row, float* cos_sin) const;
    void norm_heads(float* heads, const float* weight, int32_t count) const;
    void rope_and_append(int32_t row, int32_t layer_index) const;
    void attend(int32_t item, int32_t layer_index) const;
    const std::byte* first_page(int32_t item, int32_t layer_index) const; // that an item reads
    void quantise_attended(int32_t thread, const PackedMatrix& reader, int32_t row, bool pairs,
                           int32_t first, int32_t count) const;
    void gate_and_up(int32_t thread, int32_t layer_index, const Rows& x, int32_t item) const;
    // Of the block's products in the thread's two items, whose panels begin at `begin`; for
    // `reader` to rows from first_gated on.
    void join_gate_and_up(int32_t thread, const PackedMatrix& reader, const RowBlock& block,
                          int32_t first_gated, int32_t begin, int32_t stride) const;
    void add_product(int32_t thread, const Product& of, const Rows& x, int32_t item) const;
    void route(int32_t thread, const LayerWeights& layer, const Rows& x);
    void sort_rows();
    RowBlock rows_of(const Routing::Block& block) const; // places for rows
    Rows gather(int32_t thread, const LayerWeights& layer, const Rows& x,
                const Routing::Block& block) const;
    void ask_expert(int32_t thread, const LayerWeights& layer, const Rows& x,
                    const Routing::Block& block, int32_t chunk) const;
    void add_experts(int32_t thread, const LayerWeights& layer, int32_t item) const;
    void add_branch(int32_t thread, const float* norm_weight);
    void project(int32_t thread, int32_t layer_index, const Rows& x, bool pairs,
                 int32_t item) const;
    // What rows with adapters need of their input before add_adapters. With a barrier, if anything.
    void run_adapters(int32_t thread, int32_t layer_index, AdapterPlace place,
                      const ActivationBuffer& x);
    // To products (row of the block, stride) of the place's output panels [first, first + count).
    void add_adapters(int32_t layer_index, AdapterPlace place, const RowBlock& block,
                      int32_t first_panel, int32_t panels, float* product, int64_t stride) const;
    const LowRankUpdate& update_of(int32_t adapter, int32_t layer_index, AdapterPlace place) const {
        return adapters_->all[static_cast<size_t>(adapter - 1)].at(layer_index, place);
    }
    Arithmetic arithmetic_of(int32_t row) const {
        return row_arithmetic_[static_cast<size_t>(row)];
    }
    bool is_sink(int32_t row) const;
    Arithmetic arithmetic_of(const Segment& segment) const {
        return all_as_prompt_ ? Arithmetic::prompt : segment.arithmetic;
    }
    // What quantised weights read; two: as two int8 rows, if int8 at all.
    Form form_of(Arithmetic arithmetic, bool two) const;
    Form form_for(const PackedMatrix& reader, Arithmetic arithmetic, bool two) const;
    // Channels [first, first + count) of a row, from f32, in that form. scratch: count floats.
    void carry(const Rows& out, Form form, int32_t row, int32_t first, int32_t count,
               const float* from, float* scratch) const;
    void multiply_rows(const PackedMatrix& matrix, const Rows& x, const RowBlock& block, bool pairs,
                       int32_t panel_begin, int32_t panel_end, float* out) const;
    void multiply(const PackedMatrix& matrix, const ActivationBuffer& x, const RowBlock& block,
                  int32_t panel_begin, int32_t panel_end, float* out, int64_t out_stride) const;
    void norm(int32_t thread, const float* weight, const float* x, const Rows& out, int32_t row,
              Form form) const;
    Rows norm_rows(int32_t thread, const float* weight, bool feeds_quantised, bool pairs);
    void shape_logits(float* logits, int32_t count) const; // of one row
    template <class Body>
    void share_rows(int32_t thread, int32_t rows, Body&& body);

    const ModelConfig& config_;
    const Weights& weights_;
    const RopeTables ropes_;
    ThreadPool& pool_;
    SamplerOps sampler_ops_;
    std::vector<PlanTable> plan_tables_; // (thread count)
    Candidates candidates_;
    Choice choices_[PHASES];
    StepBuffers buffers_;
    KvArena kv_;
    const Adapters* adapters_ = nullptr;
    AnonymousMemory adapter_memory_;
    float* low_rank_ = nullptr; // (STEP_ROWS_MAX, columns_max of the adapters)
    bool batch_invariant_ = true;

    // Of the step that runs; written by prepare.
    const Step* step_ = nullptr;
    Phase phase_ = Phase::few_rows;
    const Ops* ops_;
    const PlanTable* plans_;
    const StepPlan* plan_ = nullptr;
    bool all_as_prompt_ = false;
    std::vector<RowBlock> row_blocks_;
    int32_t row_block_count_ = 0;
    std::vector<AttentionBlock> attention_blocks_;
    int32_t attention_block_count_ = 0;
    int32_t attention_heads_ = 0;            // query heads per attention item
    std::vector<Arithmetic> row_arithmetic_; // (row)
    std::vector<AdapterRows> adapter_rows_;  // by adapter
    int32_t adapter_rows_count_ = 0;         // 0: no row has one
    std::vector<int32_t> row_adapters_;      // (row) 0: none; of no use without any
    std::vector<int32_t> row_pages_;         // (row) the page that its position lies in
    Routing routing_;                        // of the layer that runs
};

} // namespace sublimate::cpu
