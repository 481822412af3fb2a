// Writing a model as a packed file (packed_file.h), and reading such a file whole to see whether it
// is as it was written.
//
// defines: ConvertOptions, convert_model, convert_joined, verify_packed
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gguf.h"
#include "pack.h"
#include "status.h"

namespace sublimate {

struct ConvertOptions {
    WeightForm form;
    int32_t threads = 0;                 // 0: all cores
    bool replace = false;                // of a file that is there
    std::function<void(float)> progress; // fraction in [0, 1], on the calling thread
};

// All of `target` appears at once, or nothing: it is written beside its place, synchronised, then
// renamed. The weights take as much memory meanwhile as in a server.
Status convert_model(const std::string& source, const std::string& target,
                     const ConvertOptions& options);

// The same of a model whose tensors lie in the files of a folder (Gguf::join), with its text.
// `source`: how messages call it.
Status convert_joined(const Gguf& file, const std::string& source, const std::string& text,
                      const std::string& target, const ConvertOptions& options);

// Compares the checksum of the weights too.
Status verify_packed(const std::string& path);

} // namespace sublimate
