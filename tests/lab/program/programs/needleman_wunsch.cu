// Global alignment of two sequences (Needleman and Wunsch): the score table is filled in 16x16 tiles, one launch per
// diagonal of tiles, and inside a tile by diagonals of cells in shared memory with a barrier between them.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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

constexpr int kTile = 16;
constexpr int kGap = -3;

__constant__ int8_t similarity[4][4] = {{5, -2, 1, -2}, {-2, 5, -2, 1}, {1, -2, 5, -2}, {-2, 1, -2, 5}};

// Fills the tiles on one diagonal. The table has a row and a column more than the sequences; pitch is its width.
__global__ void fill_diagonal(int* table, int pitch, const char* down, const char* across, int diagonal, int first) {
    __shared__ int scores[kTile + 1][kTile + 1];
    __shared__ char down_part[kTile], across_part[kTile];
    const int tile_row = first + blockIdx.x, tile_column = diagonal - tile_row, t = threadIdx.x;
    int* corner = table + size_t(tile_row) * kTile * pitch + tile_column * kTile;

    // The row above the tile, the column to its left, and the cell where both meet.
    scores[0][t + 1] = corner[t + 1];
    scores[t + 1][0] = corner[(t + 1) * pitch];
    if (t == 0) scores[0][0] = corner[0];
    down_part[t] = down[tile_row * kTile + t];
    across_part[t] = across[tile_column * kTile + t];
    __syncthreads();

    for (int step = 0; step < 2 * kTile - 1; ++step) {
        const int row = t, column = step - t;
        if (column >= 0 && column < kTile) {
            const int both = scores[row][column] + similarity[int(down_part[row])][int(across_part[column])];
            const int one = max(scores[row][column + 1], scores[row + 1][column]) + kGap;
            scores[row + 1][column + 1] = max(both, one);
        }
        __syncthreads();
    }
    for (int row = 1; row <= kTile; ++row) corner[row * pitch + t + 1] = scores[row][t + 1];
}

// Walks back from the last cell to the first; returns how many letters are aligned with an equal one, or -1 if some
// cell does not follow from its neighbours.
int equal_letters(const std::vector<int>& table, int pitch, const std::string& down, const std::string& across,
                  const int8_t (&score)[4][4]) {
    int row = int(down.size()), column = int(across.size()), equal = 0;
    while (row > 0 || column > 0) {
        const int here = table[size_t(row) * pitch + column];
        if (row > 0 && column > 0 &&
            here == table[size_t(row - 1) * pitch + column - 1] + score[int(down[row - 1])][int(across[column - 1])]) {
            equal += down[--row] == across[--column];
        } else if (row > 0 && here == table[size_t(row - 1) * pitch + column] + kGap) {
            --row;
        } else if (column > 0 && here == table[size_t(row) * pitch + column - 1] + kGap) {
            --column;
        } else {
            return -1;
        }
    }
    return equal;
}

int main() {
    const int rows = 20 * kTile, columns = 27 * kTile, pitch = columns + 1;
    std::mt19937 random(11);
    std::string down, across;
    for (int i = 0; i < rows; ++i) down += char(random() % 4);
    // The other sequence is the first one with letters changed and put in, so that an alignment exists.
    for (int i = 0; int(across.size()) < columns; ++i)
        across += random() % 4 == 0 || i >= rows ? char(random() % 4) : down[i];

    std::vector<int> table(size_t(rows + 1) * pitch, 0);
    for (int row = 0; row <= rows; ++row) table[size_t(row) * pitch] = row * kGap;
    for (int column = 0; column <= columns; ++column) table[column] = column * kGap;
    std::vector<int> right = table;
    int8_t score[4][4];
    CHECK(cudaMemcpyFromSymbol(score, similarity, sizeof(score)));
    for (int row = 1; row <= rows; ++row)
        for (int column = 1; column <= columns; ++column) {
            const int* above = &right[size_t(row - 1) * pitch + column];
            const int both = above[-1] + score[int(down[row - 1])][int(across[column - 1])];
            right[size_t(row) * pitch + column] = std::max(both, std::max(above[0], above[pitch - 1]) + kGap);
        }

    int* table_device;
    char *down_device, *across_device;
    CHECK(cudaMalloc(&table_device, table.size() * sizeof(int)));
    CHECK(cudaMalloc(&down_device, down.size()));
    CHECK(cudaMalloc(&across_device, across.size()));
    CHECK(cudaMemcpy(table_device, table.data(), table.size() * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(down_device, down.data(), down.size(), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(across_device, across.data(), across.size(), cudaMemcpyHostToDevice));
    const int tile_rows = rows / kTile, tile_columns = columns / kTile;
    for (int diagonal = 0; diagonal < tile_rows + tile_columns - 1; ++diagonal) {
        const int first = std::max(0, diagonal - tile_columns + 1), last = std::min(diagonal, tile_rows - 1);
        fill_diagonal<<<last - first + 1, kTile>>>(table_device, pitch, down_device, across_device, diagonal, first);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaMemcpy(table.data(), table_device, table.size() * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(table_device));
    CHECK(cudaFree(down_device));
    CHECK(cudaFree(across_device));

    size_t wrong = 0;
    for (size_t i = 0; i < table.size(); ++i) wrong += table[i] != right[i];
    const int equal = equal_letters(table, pitch, down, across, score);
    const bool good = wrong == 0 && equal > 0;
    std::printf("needleman_wunsch: score %d, %d letters equal, %zu cells wrong: %s\n", table.back(), equal, wrong,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
