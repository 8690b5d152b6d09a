// D = alpha * X + beta * Y where one side is short, the other long, and X is contiguous along D's columns. A chunk is a
// piece of the long side; see transpose/chunk.cuh. A "row" below is one of the SHORT runs along the long side.
//
//                    tall: D has few columns                     wide: D has few rows
//   X                N rows, one per column, M elements each     one run
//   Y and D          one run                                     M rows, one per row of D, G * N elements each
//
// A run is contiguous whatever the short side is. It is aligned if its operand starts on 16 bytes; otherwise it is
// accessed element by element. Rows may start unaligned (UNALIGNED). Tall: X is loaded from the last 16-byte boundary
// on, one more vector per row, and the gather skips the extra elements. Wide: a chunk's piece of each row of D is
// shifted left to a 16-byte boundary, and X is loaded from V columns earlier. The shift does not depend on the chunk,
// so the addresses that are computed once include it.
#include "kernels/transpose/chunk.cuh"

using matmill::Index;

constexpr bool WIDE = Config::WIDE != 0, UNALIGNED = Config::APART != 0;
constexpr int SHORT = WIDE ? Config::M : Config::N, LONG = WIDE ? Config::G * Config::N : Config::M;
constexpr int ROOM = UNALIGNED ? 16 / int(sizeof(Scalar)) : 0;  // extra elements of a row before a chunk's own
constexpr int COLUMN_PITCH = WIDE ? Config::M : LONG + ROOM;    // of X in shared memory
using Chunk = matmill::Chunk<Scalar, Config, COLUMN_PITCH, UNALIGNED ? SHORT : 0>;
using Vector = Chunk::Vector;
constexpr int V = Chunk::V, Y_WIDTH = Config::Y_WIDTH;

struct Operands {
  const Scalar *X, *Y;
  Scalar* D;
  int length;  // of the long side
  // Between rows, of the operands that have rows.
  Index x_pitch, y_pitch, d_pitch;
  bool aligned;  // of the operand that is a run: X (wide) or D (tall)

  __device__ __forceinline__ void copy_x(unsigned char* buffer, Index chunk) const {
    const Scalar* const from = X + chunk * (WIDE ? Chunk::RUN : LONG);
    const int left = WIDE ? run_left(chunk) : row_left(chunk), reach = WIDE ? Chunk::RUN : LONG + ROOM;
    const bool all = (!UNALIGNED || chunk > 0) && left >= reach;
#pragma unroll
    for (int s = 0; s < Chunk::XSlots::SLOTS; ++s) {
      if (!Chunk::XSlots::present(s)) continue;
      const Position position = x_position(Chunk::XSlots::vector(s));
      const Range range = all ? Range{0, V} : existing(position, chunk, left);
      Chunk::copy_x_vector(buffer, Chunk::XSlots::vector(s), from + position.offset, range.begin, range.end,
                           !WIDE || aligned);
    }
  }

  __device__ __forceinline__ void fetch_y(Vector (&y)[Chunk::DSlots::SLOTS], Index chunk) const {
    const Scalar* const from = Y + chunk * (WIDE ? LONG : Chunk::RUN);
#pragma unroll
    for (int s = 0; s < Chunk::DSlots::SLOTS; ++s) {
      if (!Chunk::DSlots::present(s)) continue;
      const Position position = d_position(Chunk::DSlots::vector(s), y_pitch);
      const Range range = existing_d(position, chunk);
      y[s] = Chunk::template load_vector<Y_WIDTH>(from + position.offset, range.begin, range.end, WIDE || aligned);
    }
  }

  __device__ __forceinline__ void copy_y(unsigned char* buffer, Index chunk) const {
    const Scalar* const from = Y + chunk * (WIDE ? LONG : Chunk::RUN);
#pragma unroll
    for (int s = 0; s < Chunk::DSlots::SLOTS; ++s) {
      if (!Chunk::DSlots::present(s)) continue;
      const Position position = d_position(Chunk::DSlots::vector(s), y_pitch);
      const Range range = existing_d(position, chunk);
      Chunk::copy_y_vector(buffer, Chunk::DSlots::vector(s), from + position.offset, range.begin, range.end,
                           WIDE || aligned);
    }
  }

  __device__ __forceinline__ void store(const Vector& v, int s, Index chunk) const {
    Scalar* const to = D + chunk * (WIDE ? LONG : Chunk::RUN);
    const Position position = d_position(Chunk::DSlots::vector(s), d_pitch);
    const Range range = existing_d(position, chunk);
    Chunk::store_vector(to + position.offset, v, range.begin, range.end, WIDE || aligned);
  }

  __device__ __forceinline__ int shift(int row, int column) const {
    return !UNALIGNED ? 0 : WIDE ? (ROOM - misalignment(row)) * SHORT : misalignment(column);
  }

 private:
  // Where a vector of a chunk begins: its offset from the chunk's pointer, and its index in the chunk's piece of the
  // row.
  struct Position {
    Index offset;
    int index;
  };
  __device__ __forceinline__ Position x_position(int vector) const {
    if constexpr (WIDE) {
      const int index = vector * V - ROOM * SHORT;
      return {index, index};
    } else {
      const int row = vector / (COLUMN_PITCH / V), index = vector % (COLUMN_PITCH / V) * V - misalignment(row);
      return {row * x_pitch + index, index};
    }
  }
  __device__ __forceinline__ Position d_position(int vector, Index pitch) const {
    const int at = vector * V;
    if constexpr (WIDE) {
      constexpr int N = Chunk::N, MATRIX = SHORT * N;
      const int row = at % MATRIX / N, index = at / MATRIX * N + at % N - misalignment(row);
      return {row * pitch + index, index};
    } else {
      return {at, at};
    }
  }
  // Elements from the last multiple of V in memory to the start of a row.
  __device__ __forceinline__ int misalignment(int row) const {
    if constexpr (!UNALIGNED) return 0;
    const Scalar* const start = WIDE ? D + row * d_pitch : X + row * x_pitch;
    return unsigned(reinterpret_cast<unsigned long long>(start)) / sizeof(Scalar) % V;
  }

  // Elements of a row, or of a run, that exist from the start of a chunk on; of a run, within the chunk.
  __device__ __forceinline__ int row_left(Index chunk) const { return length - int(chunk * LONG); }
  __device__ __forceinline__ int run_left(Index chunk) const { return min(row_left(chunk), LONG) * SHORT; }

  // Which elements of a vector exist where `left` elements exist from the chunk's piece of the row on. Only the first
  // chunk lacks elements before that.
  struct Range {
    int begin, end;
  };
  static __device__ __forceinline__ Range existing(const Position& position, Index chunk, int left) {
    return {chunk > 0 ? 0 : -position.index, left - position.index};
  }
  // The same for a vector of Y or D. In most chunks all exist.
  __device__ __forceinline__ Range existing_d(const Position& position, Index chunk) const {
    const bool all = (!WIDE || !UNALIGNED || chunk > 0) && row_left(chunk) >= LONG;
    return all ? Range{0, V} : existing(position, chunk, WIDE ? row_left(chunk) : run_left(chunk));
  }
};

// D has `length` rows (tall) or columns (wide). Pitches are those of rows; a run has none. Y and D may alias.
extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM) transpose_slim(PARAMETERS) {
  extern __shared__ __align__(16) unsigned char shared[];
  const bool aligned = matmill::on_vectors(WIDE ? X : D);
  const Operands operands{X, Y, D, length, x_pitch, y_pitch, d_pitch, aligned};
  // Rows that are shifted left end up to V - 1 columns later.
  const int reach = WIDE && UNALIGNED ? V - 1 : 0;
  Chunk::run(shared, operands, (length + reach + LONG - 1) / LONG, alpha, beta);
}
