// Lines of a matrix that start anywhere, in shared memory: copied by vectors of 16 bytes, read from any element on.
//
//   global   ··|▒▒▒▒ line ▒▒▒▒▒|··        aligned vectors that hold a part of the line are copied as they lie
//   shared   ··|▒▒▒▒ line ▒▒▒▒▒|··        as far behind a multiple of 16 bytes as in global memory
//
// A vector can only be copied to an address that is aligned as its own. So lines lie as far apart here as there, modulo
// 16 bytes: whatever the pitch, what is a vector there is one here, and an element's address is still linear in its
// line and its place. No register holds what is under way, and nothing is shifted: elements are read one by one anyway
// where lines are turned.
#pragma once

#include "matmill/geam/vector.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill {

// LINES parts of lines with LENGTH elements each, copied by THREADS threads.
template <class Scalar, int THREADS, int LINES, int LENGTH>
struct Lines {
  static constexpr int SIZE = sizeof(Scalar), LONG = LENGTH * SIZE, UNIT = 16, V = UNIT / SIZE;
  // Vectors that hold a part, wherever it starts: as many as are a power of two, and those that are left.
  static constexpr int CHUNKS = (LONG + UNIT - SIZE + UNIT - 1) / UNIT;
  static constexpr int most_power(int most) { return most < 2 ? 1 : 2 * most_power(most / 2); }
  static constexpr int FIRST = most_power(CHUNKS), REST = CHUNKS - FIRST;
  static_assert(THREADS % FIRST == 0, "threads must cover lines");
  // From line to line, besides what their pitch is modulo 16 bytes: no vector holds parts of two.
  static constexpr int APART = (LONG + UNIT - 1) / UNIT * UNIT + UNIT;
  static constexpr int BYTES = (LINES * (APART + UNIT - SIZE) + 2 * UNIT + UNIT - 1) / UNIT * UNIT;

  // Where the lines are: `from` is the first one's part in global memory, `stride` bytes from one to the next; of the
  // lines from `first` on `lines` exist, and of their elements, from `start` on, `length`. All that lies between `begin`
  // and `end` may be read.
  template <class Stride>
  struct Source {
    const unsigned char *from, *begin, *end;
    Stride stride;
    int first, lines, start, length;
  };

  unsigned origin, pitch;  // the first line's part, as an address in shared memory, and bytes from line to line

  // `shared` holds BYTES, aligned to 16. Whoever calls closes the group of copies, and waits for it. Through L1: where a
  // line's part ends, another request asks for the rest of a sector (2 to 4% of the time of sums with odd pitches).
  template <class Stride, class Times>
  __device__ __forceinline__ void fetch(unsigned char* shared, const Source<Stride>& source, Times times) {
    origin = ptx::shared_address(shared) + unsigned(reinterpret_cast<unsigned long long>(source.from)) % UNIT;
    pitch = APART + unsigned(source.stride) % UNIT;
    // Most blocks have only lines that exist, and may read all vectors that hold a part of one.
    const long long reach = times(LINES - 1, source.stride);
    const bool all = source.first >= 0 && source.first + LINES <= source.lines && source.start >= 0 &&
                     source.start + LENGTH <= source.length &&
                     source.from + (reach < 0 ? reach : 0) - UNIT >= source.begin &&
                     source.from + (reach > 0 ? reach : 0) + LONG + UNIT <= source.end;
    if (all) {
      whole<FIRST, 0>(source, times);
      if constexpr (REST > 0) whole<REST, FIRST>(source, times);
    } else {
#pragma unroll 1
      for (int item = threadIdx.x; item < LINES * CHUNKS; item += THREADS) {
        single(source, item / CHUNKS, item % CHUNKS, times);
      }
    }
  }

  // The vector of elements of V lines side by side.
  __device__ __forceinline__ Vector<Scalar, V> across(int line, int element) const {
    const unsigned from = address(line) + element * SIZE;
    return Vector<Scalar, V>::gathered([&](int i) { return *in_shared<Scalar>(from + i * pitch); });
  }

  // The vector of elements of one line from any one on, by words.
  __device__ __forceinline__ Vector<Scalar, V> along(int line, int element) const {
    using Made = Vector<Scalar, V>;
    const unsigned at = address(line) + element * SIZE;
    if constexpr (SIZE >= 4) {
      return Made::gathered([&](int i) { return in_shared<Scalar>(at)[i]; });
    } else {
      const unsigned inside = at % 4;
      const unsigned* const from = in_shared<unsigned>(at - inside);
      Made v;
      unsigned word = from[0];
#pragma unroll
      for (int j = 0; j < Made::WORDS; ++j) {
        // The last word is another one only if the vector reaches into it.
        const unsigned next = from[j + 1 < Made::WORDS || inside != 0 ? j + 1 : j];
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
  __device__ __forceinline__ unsigned address(int line) const { return origin + line * pitch; }

  // Copies COUNT vectors of each line, from vector CHUNK on, where all exist.
  template <int COUNT, int CHUNK, class Stride, class Times>
  __device__ __forceinline__ void whole(const Source<Stride>& source, Times times) const {
    constexpr int PASS = THREADS / COUNT, ROUNDS = (LINES + PASS - 1) / PASS;  // lines at a time
    const int line = threadIdx.x / COUNT, before = (CHUNK + threadIdx.x % COUNT) * UNIT;
    const unsigned char* from = source.from + times(line, source.stride) + before;
    unsigned to = address(line);
#pragma unroll
    for (int s = 0; s < ROUNDS; ++s) {
      const int behind = to % UNIT;
      const bool present = (THREADS % COUNT == 0 || line < PASS) && (s + 1 < ROUNDS || line + s * PASS < LINES);
      // Vectors behind a power of two of them may hold nothing of the line, or something of the next one.
      if (present && (CHUNK == 0 || before - behind < LONG)) ptx::cp_async<UNIT>(to - behind + before, from - behind);
      from += times(PASS, source.stride);
      to += PASS * pitch;
    }
  }

  // Copies one vector of a line; what does not exist is 0.
  template <class Stride, class Times>
  __device__ __forceinline__ void single(const Source<Stride>& source, int line, int chunk, Times times) const {
    const unsigned at = address(line), behind = at % UNIT;
    const int before = chunk * UNIT - int(behind), element = source.start + before / SIZE;  // its first, in the line
    if (before >= LONG) return;
    const unsigned char* const from = source.from + times(line, source.stride) + before;
    const bool exists = unsigned(source.first + line) < unsigned(source.lines);
    if (exists && element < source.length && element + V > 0 && from >= source.begin && from + UNIT <= source.end) {
      ptx::cp_async<UNIT>(at + before, from);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < V; ++i) {
      const bool present = exists && element + i >= 0 && element + i < source.length;
      in_shared<Scalar>(at + before)[i] = present ? reinterpret_cast<const Scalar*>(from)[i] : Scalar{};
    }
  }
};

}  // namespace matmill
