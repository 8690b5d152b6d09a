// Unaligned rows in shared memory: copied by vectors of 16 bytes, read at any element. Rows may be a matrix's rows or
// its columns.
//
//   global   ··|▒▒▒▒ row ▒▒▒▒▒|··         aligned vectors that hold a piece of the row are copied whole
//   shared   ··|▒▒▒▒ row ▒▒▒▒▒|··         with the same misalignment to 16 bytes as in global memory
//
// cp.async needs the same alignment on both sides. So rows have the same pitch modulo 16 bytes here and there: whatever
// the pitch, a global vector is a shared vector, and an element's address is linear in its row and its index. Data in
// flight takes no registers, and nothing is shifted: a transpose reads single elements anyway.
#pragma once

#include "kernels/transpose/vector.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill {

// Readable memory: a matrix's own, plus, once widened, that of the other matrices of its batch before and after it.
struct Span {
  const unsigned char *begin, *end;
  long long to_first, to_last;

  __device__ __forceinline__ bool contains(const unsigned char* low, const unsigned char* high) const {
    return low >= begin && high <= end;
  }
  __device__ __forceinline__ void widen() {
    begin += min(to_first, to_last);
    end += max(to_first, to_last);
  }
};

// ROWS pieces of rows, LENGTH elements each, copied by THREADS threads.
template <class Scalar, int THREADS, int ROWS, int LENGTH>
struct StagedRows {
  static constexpr int SIZE = sizeof(Scalar), ROW_BYTES = LENGTH * SIZE, VECTOR_BYTES = 16, V = VECTOR_BYTES / SIZE;
  // Vectors that contain a piece, wherever it starts: a power of two of them, and the rest.
  static constexpr int VECTORS = (ROW_BYTES + VECTOR_BYTES - SIZE + VECTOR_BYTES - 1) / VECTOR_BYTES;
  static constexpr int power_of_two(int most) { return most < 2 ? 1 : 2 * power_of_two(most / 2); }
  static constexpr int POWER = power_of_two(VECTORS), REST = VECTORS - POWER;
  static_assert(THREADS % POWER == 0, "threads must cover rows");
  // The pitch, apart from its value modulo 16 bytes: no vector contains pieces of two rows.
  static constexpr int MIN_PITCH = (ROW_BYTES + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES + VECTOR_BYTES;
  static constexpr int BYTES =
      (ROWS * (MIN_PITCH + VECTOR_BYTES - SIZE) + 2 * VECTOR_BYTES + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES;

  // The rows in global memory: `from` is the first one's piece, `stride` the bytes between rows. `rows` rows exist from
  // row 0 on, where the first piece is row `first`; `length` elements of each exist, where the piece begins at element
  // `start`. All of `span` is readable.
  template <class Stride>
  struct Source {
    const unsigned char* from;
    Span span;
    Stride stride;
    int first, rows, start, length;
  };

  unsigned origin, pitch;  // shared-memory address of the first row's piece; bytes between rows

  // `shared` holds BYTES, aligned to 16. The caller commits the group of copies and waits for it. Copies go through L1:
  // where a row's piece ends, another request reads the rest of a sector (2 to 4% of the time of transpose-adds with
  // odd pitches).
  template <class Stride, class Times>
  __device__ __forceinline__ void fetch(unsigned char* shared, Source<Stride> source, Times times) {
    origin = ptx::shared_address(shared) + misalignment(source.from);
    pitch = MIN_PITCH + unsigned(source.stride) % VECTOR_BYTES;
    // Nearly all blocks may read every vector that contains elements of their pieces: those from `low` to `high`,
    // rounded outwards to vectors.
    const auto one = times(max(0, -source.first), source.stride);
    const auto other = times(min(ROWS, source.rows - source.first) - 1, source.stride);
    const unsigned char* const low = source.from + min(one, other) + max(0, -source.start) * SIZE;
    const unsigned char* const high = source.from + max(one, other) + min(LENGTH, source.length - source.start) * SIZE;
    const auto ends = [&] {
      return source.span.contains(low - misalignment(low), high + (VECTOR_BYTES - misalignment(high)) % VECTOR_BYTES);
    };
    bool readable = ends();
    if (!readable) {  // a block at the start or end of its matrix
      source.span.widen();
      readable = ends();
    }
    if (readable) {
      copy_full<POWER, 0>(source, times);
      if constexpr (REST > 0) copy_full<REST, POWER>(source, times);
    } else {
#pragma unroll 1
      for (int item = threadIdx.x; item < ROWS * VECTORS; item += THREADS) {
        copy_edge(source, item / VECTORS, item % VECTORS, times);
      }
    }
  }

  // The vector of one element of each of V adjacent rows.
  __device__ __forceinline__ Vector<Scalar, V> across_rows(int row, int element) const {
    const unsigned from = address(row) + element * SIZE;
    return Vector<Scalar, V>::gathered([&](int i) { return *in_shared<Scalar>(from + i * pitch); });
  }

  // The vector of V elements of one row from any element on, read by words.
  __device__ __forceinline__ Vector<Scalar, V> along_row(int row, int element) const {
    using Result = Vector<Scalar, V>;
    const unsigned at = address(row) + element * SIZE;
    if constexpr (SIZE >= 4) {
      return Result::gathered([&](int i) { return in_shared<Scalar>(at)[i]; });
    } else {
      const unsigned inside = at % 4;
      const unsigned* const from = in_shared<unsigned>(at - inside);
      Result v;
      unsigned word = from[0];
#pragma unroll
      for (int j = 0; j < Result::WORDS; ++j) {
        // One more word, if the vector extends into it.
        const unsigned next = from[j + 1 < Result::WORDS || inside != 0 ? j + 1 : j];
        v.words[j] = __funnelshift_r(word, next, inside * 8);
        word = next;
      }
      return v;
    }
  }

 private:
  template <class T>
  static __device__ __forceinline__ T* in_shared(unsigned address) {
    return static_cast<T*>(__cvta_shared_to_generic(address));
  }
  static __device__ __forceinline__ unsigned misalignment(const unsigned char* address) {
    return unsigned(reinterpret_cast<unsigned long long>(address)) % VECTOR_BYTES;
  }
  __device__ __forceinline__ unsigned address(int row) const { return origin + row * pitch; }

  // Copies COUNT vectors of each row, after the first SKIPPED, where all are readable. Vectors of rows that do not
  // exist become zeros.
  template <int COUNT, int SKIPPED, class Stride, class Times>
  __device__ __forceinline__ void copy_full(const Source<Stride>& source, Times times) const {
    constexpr int PASS = THREADS / COUNT, ROUNDS = (ROWS + PASS - 1) / PASS;  // rows per pass
    const int row = threadIdx.x / COUNT, offset = (SKIPPED + threadIdx.x % COUNT) * VECTOR_BYTES;
    const unsigned index = source.first + row, most = source.length + V - 1;
    const int last = source.start + offset / SIZE + V - 1;  // last element of a vector, if it starts where the row does
    const unsigned char* from = source.from + times(row, source.stride) + offset;
    unsigned to = address(row);
#pragma unroll
    for (int s = 0; s < ROUNDS; ++s) {
      const unsigned lead = to % VECTOR_BYTES;
      const bool assigned = (THREADS % COUNT == 0 || row < PASS) && (s + 1 < ROUNDS || row + s * PASS < ROWS);
      // Vectors after the power of two may hold nothing of this row, or a piece of the next row.
      const bool held = SKIPPED == 0 || offset - int(lead) < ROW_BYTES;
      const bool exists = index + s * PASS < unsigned(source.rows) && unsigned(last - lead / SIZE) < most;
      if (assigned && held)
        ptx::cp_async_src_size<VECTOR_BYTES>(to - lead + offset, from - lead, exists ? VECTOR_BYTES : 0);
      from += times(PASS, source.stride);
      to += PASS * pitch;
    }
  }

  // Copies one vector of a row; elements that do not exist become zeros.
  template <class Stride, class Times>
  __device__ __forceinline__ void copy_edge(const Source<Stride>& source, int row, int vector, Times times) const {
    const unsigned at = address(row), lead = at % VECTOR_BYTES;
    const int offset = vector * VECTOR_BYTES - int(lead);
    const int element = source.start + offset / SIZE;  // the vector's first
    if (offset >= ROW_BYTES) return;
    const unsigned char* const from = source.from + times(row, source.stride) + offset;
    const bool exists = unsigned(source.first + row) < unsigned(source.rows);
    if (exists && element < source.length && element + V > 0 && source.span.contains(from, from + VECTOR_BYTES)) {
      ptx::cp_async<VECTOR_BYTES>(at + offset, from);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < V; ++i) {
      const bool present = exists && element + i >= 0 && element + i < source.length;
      in_shared<Scalar>(at + offset)[i] = present ? reinterpret_cast<const Scalar*>(from)[i] : Scalar{};
    }
  }
};

}  // namespace matmill
