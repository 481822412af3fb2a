// Sha256 and Signer.
#include "signature.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "../check.h"

namespace sublimate {

namespace {

constexpr int WORD_BYTES = 4, WORD_BITS = 32, BYTE_BITS = 8;
constexpr int ROUNDS = 64, WORDS = 16;

// Fractional parts of the square roots of the first 8 primes and of the cube roots of the first 64.
constexpr std::array<uint32_t, 8> START = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
constexpr std::array<uint32_t, ROUNDS> ROUND_CONSTANTS = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static_assert(sizeof(Sha256::Digest) == START.size() * WORD_BYTES);
static_assert(Sha256::BLOCK_BYTES == size_t{WORDS * WORD_BYTES});

uint32_t read_word(const uint8_t* bytes) {
    uint32_t word = 0;
    for (int i = 0; i < WORD_BYTES; i++) word = word << BYTE_BITS | bytes[i];
    return word;
}

void write_word(uint32_t word, uint8_t* bytes) {
    for (int i = WORD_BYTES; i-- > 0; word >>= BYTE_BITS) bytes[i] = static_cast<uint8_t>(word);
}

void append_base64(const Sha256::Digest& digest, std::string& out) {
    constexpr char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    constexpr size_t GROUP = 3, SIGNS = 4;
    constexpr int SIGN_BITS = 6, GROUP_BITS = 24, SIGN_MASK = 63;
    for (size_t at = 0; at < digest.size(); at += GROUP) {
        size_t bytes = std::min(GROUP, digest.size() - at);
        uint32_t group = 0;
        for (size_t i = 0; i < GROUP; i++)
            group = group << BYTE_BITS | (i < bytes ? digest[at + i] : 0u);
        for (size_t i = 0; i < SIGNS; i++) {
            int shift = GROUP_BITS - SIGN_BITS * (static_cast<int>(i) + 1);
            out.push_back(i <= bytes ? ALPHABET[group >> shift & SIGN_MASK] : '=');
        }
    }
}

} // namespace

Sha256::Sha256() : state_(START) {}

// One block of 16 words; names are those of the standard.
void Sha256::compress(const uint8_t* block) {
    uint32_t w[ROUNDS];
    for (int t = 0; t < WORDS; t++) w[t] = read_word(block + t * WORD_BYTES);
    for (int t = WORDS; t < ROUNDS; t++) {
        uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t t = 0; t < ROUNDS; t++) {
        uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + ROUND_CONSTANTS[t] + w[t];
        uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    std::array<uint32_t, 8> sums = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < sums.size(); i++) state_[i] += sums[i];
}

void Sha256::update(std::string_view data) {
    while (!data.empty()) {
        size_t filled = bytes_ % BLOCK_BYTES;
        size_t taken = std::min(BLOCK_BYTES - filled, data.size());
        std::memcpy(block_.data() + filled, data.data(), taken);
        data.remove_prefix(taken);
        bytes_ += taken;
        if (filled + taken == BLOCK_BYTES) compress(block_.data());
    }
}

Sha256::Digest Sha256::finish() {
    uint64_t bits = bytes_ * BYTE_BITS;
    constexpr size_t LENGTH_AT = BLOCK_BYTES - sizeof bits;
    update(std::string_view("\x80", 1));
    while (bytes_ % BLOCK_BYTES != LENGTH_AT) update(std::string_view("", 1));
    uint8_t length[sizeof bits];
    write_word(static_cast<uint32_t>(bits >> WORD_BITS), length);
    write_word(static_cast<uint32_t>(bits), length + WORD_BYTES);
    update({reinterpret_cast<const char*>(length), sizeof length});
    CHECK_BECAUSE(bytes_ % BLOCK_BYTES == 0, "the padding ends a block");
    Digest digest;
    for (size_t i = 0; i < state_.size(); i++) write_word(state_[i], &digest[i * WORD_BYTES]);
    return digest;
}

Signer::Signer(std::string_view key) {
    constexpr uint8_t INNER_PAD = 0x36, OUTER_PAD = 0x5C;
    std::array<uint8_t, Sha256::BLOCK_BYTES> padded = {};
    if (key.size() > padded.size()) {
        Sha256 hash;
        hash.update(key);
        Sha256::Digest digest = hash.finish();
        std::copy(digest.begin(), digest.end(), padded.begin());
    } else {
        std::copy(key.begin(), key.end(), padded.begin());
    }
    for (auto [hash, pad] : {std::pair{&inner_, INNER_PAD}, std::pair{&outer_, OUTER_PAD}}) {
        std::string block(padded.begin(), padded.end());
        for (char& byte : block) byte = static_cast<char>(byte ^ pad);
        hash->update(block);
    }
    begin();
}

void Signer::finish(std::string& out) {
    Sha256::Digest inner = text_.finish();
    Sha256 outer = outer_;
    outer.update({reinterpret_cast<const char*>(inner.data()), inner.size()});
    append_base64(outer.finish(), out);
    begin();
}

} // namespace sublimate
