// SHA-256 of a batch of messages, a thread each: rotations by __funnelshift_r, byte order by __byte_perm, the round
// constants in __constant__ memory. Checked with the known digests of "abc" and "", and with a host version.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));        \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

struct Digest {
    uint32_t words[8];
};

__constant__ uint32_t round_constants[64];
__constant__ Digest first_state;

// Both versions of what the hash needs from a processor: a rotation to the right, and the other byte order.
__host__ __device__ inline uint32_t rotate(uint32_t word, int bits) {
#ifdef __CUDA_ARCH__
    return __funnelshift_r(word, word, bits);
#else
    return word >> bits | word << (32 - bits);
#endif
}

__host__ __device__ inline uint32_t swap_bytes(uint32_t word) {
#ifdef __CUDA_ARCH__
    return __byte_perm(word, 0, 0x0123);
#else
    return word >> 24 | (word >> 8 & 0xff00) | (word << 8 & 0xff0000) | word << 24;
#endif
}

// Takes one block of 16 words (as they lie in memory) into the state.
__host__ __device__ inline void compress(Digest& state, const uint32_t* block, const uint32_t* constants) {
    uint32_t w[16], s[8];
    for (int i = 0; i < 16; ++i) w[i] = swap_bytes(block[i]);
    for (int i = 0; i < 8; ++i) s[i] = state.words[i];
    for (int i = 0; i < 64; ++i) {
        if (i >= 16) {
            const uint32_t early = w[(i + 1) % 16], late = w[(i + 14) % 16];
            w[i % 16] += (rotate(early, 7) ^ rotate(early, 18) ^ early >> 3) + w[(i + 9) % 16] +
                         (rotate(late, 17) ^ rotate(late, 19) ^ late >> 10);
        }
        const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        const uint32_t one = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + choice + constants[i] +
                             w[i % 16];
        const uint32_t two = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + majority;
        for (int j = 7; j > 0; --j) s[j] = s[j - 1];
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) state.words[i] += s[i];
}

// Message i is in the blocks of 16 words from first[i] to first[i + 1], padded already.
__global__ void hash_all(const uint32_t* __restrict__ blocks, const int* __restrict__ first, Digest* digests,
                         int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Digest state = first_state;
    for (int block = first[i]; block < first[i + 1]; ++block) compress(state, blocks + block * 16, round_constants);
    digests[i] = state;
}

std::string hex(const Digest& digest) {
    char text[65];
    for (int i = 0; i < 8; ++i) std::snprintf(text + 8 * i, 9, "%08x", unsigned(digest.words[i]));
    return text;
}

// The first 32 bits of the fraction of a root: the constants of SHA-256 are such roots of the first primes.
uint32_t fraction_bits(long double root) { return uint32_t((root - std::floor(root)) * 4294967296.0L); }

int main() {
    uint32_t constants[64];
    Digest start;
    for (int prime = 2, n = 0; n < 64; ++prime) {
        bool is_prime = true;
        for (int d = 2; d * d <= prime; ++d) is_prime = is_prime && prime % d != 0;
        if (!is_prime) continue;
        if (n < 8) start.words[n] = fraction_bits(std::sqrt((long double)prime));
        constants[n++] = fraction_bits(std::cbrt((long double)prime));
    }
    std::mt19937 random(14);
    std::vector<std::string> messages{"abc", ""};
    while (messages.size() < 1000) {
        std::string text(random() % 150, ' ');
        for (char& letter : text) letter = char(random());
        messages.push_back(text);
    }
    std::vector<int> first{0};
    std::vector<uint32_t> blocks;
    for (std::string text : messages) {
        const uint64_t bits = text.size() * 8;
        text += char(0x80);
        while (text.size() % 64 != 56) text += char(0);
        for (int shift = 56; shift >= 0; shift -= 8) text += char(bits >> shift);
        blocks.resize(blocks.size() + text.size() / 4);
        std::memcpy(&blocks[size_t(first.back()) * 16], text.data(), text.size());
        first.push_back(int(blocks.size() / 16));
    }

    uint32_t* blocks_device;
    int* first_device;
    Digest* digests_device;
    const int count = int(messages.size());
    CHECK(cudaMemcpyToSymbol(round_constants, constants, sizeof(constants)));
    CHECK(cudaMemcpyToSymbol(first_state, &start, sizeof(start)));
    CHECK(cudaMalloc(&blocks_device, blocks.size() * sizeof(uint32_t)));
    CHECK(cudaMalloc(&first_device, first.size() * sizeof(int)));
    CHECK(cudaMalloc(&digests_device, count * sizeof(Digest)));
    CHECK(cudaMemcpy(blocks_device, blocks.data(), blocks.size() * sizeof(uint32_t), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(first_device, first.data(), first.size() * sizeof(int), cudaMemcpyHostToDevice));
    hash_all<<<(count + 127) / 128, 128>>>(blocks_device, first_device, digests_device, count);
    CHECK(cudaGetLastError());
    std::vector<Digest> digests(count);
    CHECK(cudaMemcpy(digests.data(), digests_device, count * sizeof(Digest), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(blocks_device));
    CHECK(cudaFree(first_device));
    CHECK(cudaFree(digests_device));

    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        Digest state = start;
        for (int block = first[i]; block < first[i + 1]; ++block)
            compress(state, &blocks[size_t(block) * 16], constants);
        wrong += std::memcmp(&state, &digests[i], sizeof(Digest)) != 0;
    }
    const bool known = hex(digests[0]) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" &&
                       hex(digests[1]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const bool good = wrong == 0 && known;
    std::printf("sha256: abc is %.16s..., %d of %d wrong: %s\n", hex(digests[0]).c_str(), wrong, count,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
