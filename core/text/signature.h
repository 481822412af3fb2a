// The signature of a thinking block, made while its text is shown.
//
// Python twin: sign_thinking in src/sublimate/model/thinking.py.
//
// defines: Sha256, Signer
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sublimate {

// FIPS 180-4.
class Sha256 {
public:
    static constexpr size_t BLOCK_BYTES = 64;
    using Digest = std::array<uint8_t, 32>;

    Sha256();
    void update(std::string_view data);
    // Of everything so far; the object may go on only as a copy made before.
    Digest finish();

private:
    void compress(const uint8_t* block);

    std::array<uint32_t, 8> state_;
    std::array<uint8_t, BLOCK_BYTES> block_ = {}; // the last of it not yet compressed
    uint64_t bytes_ = 0;
};

// HMAC-SHA256 (RFC 2104) of texts with one key, as base64 (RFC 4648, with padding).
class Signer {
public:
    // Empty: all may sign with it, so it is for tests.
    explicit Signer(std::string_view key);
    void begin() { text_ = inner_; }
    void update(std::string_view text) { text_.update(text); }
    // Appends the signature of what came since begin.
    void finish(std::string& out);

private:
    Sha256 inner_, outer_; // after the padded key
    Sha256 text_;
};

} // namespace sublimate
