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

#include "matmill/transpose/vector.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill {

// What may be read: a matrix's own memory, and as much before and behind as the others of its batch are away.
struct Span {
  const unsigned char *begin, *end;
  long long to_first, to_last;

  __device__ __forceinline__ bool holds(const unsigned char* low, const unsigned char* high) const {
    return low >= begin && high <= end;
  }
  __device__ __forceinline__ void widen() {
    begin += min(to_first, to_last);
    end += max(to_first, to_last);
  }
};

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
  // lines from `first` on `lines` exist, and of their elements, from `start` on, `length`. All of `span` may be
  // read.
  template <class Stride>
  struct Source {
    const unsigned char* from;
    Span span;
    Stride stride;
    int first, lines, start, length;
  };

  unsigned origin, pitch;  // the first line's part, as an address in shared memory, and bytes from line to line

  // `shared` holds BYTES, aligned to 16. Whoever calls closes the group of copies, and waits for it. Through L1: where a
  // line's part ends, another request asks for the rest of a sector (2 to 4% of the time of sums with odd pitches).
  template <class Stride, class Times>
  __device__ __forceinline__ void fetch(unsigned char* shared, Source<Stride> source, Times times) {
    origin = ptx::shared_address(shared) + past(source.from);
    pitch = APART + unsigned(source.stride) % UNIT;
    // Of nearly all blocks all vectors may be read that hold something of a line's part. They lie between the first
    // multiple of UNIT and the last one that such elements touch.
    const auto one = times(max(0, -source.first), source.stride);
    const auto other = times(min(LINES, source.lines - source.first) - 1, source.stride);
    const unsigned char* const low = source.from + min(one, other) + max(0, -source.start) * SIZE;
    const unsigned char* const high = source.from + max(one, other) + min(LENGTH, source.length - source.start) * SIZE;
    const auto ends = [&] { return source.span.holds(low - past(low), high + (UNIT - past(high)) % UNIT); };
    bool readable = ends();
    if (!readable) {  // a block at the start or the end of its matrix
      source.span.widen();
      readable = ends();
    }
    if (readable) {
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
  static __device__ __forceinline__ unsigned past(const unsigned char* address) {
    return unsigned(reinterpret_cast<unsigned long long>(address)) % UNIT;
  }
  __device__ __forceinline__ unsigned address(int line) const { return origin + line * pitch; }

  // Copies COUNT vectors of each line, from vector CHUNK on, where all may be read; those of no line are 0.
  template <int COUNT, int CHUNK, class Stride, class Times>
  __device__ __forceinline__ void whole(const Source<Stride>& source, Times times) const {
    constexpr int PASS = THREADS / COUNT, ROUNDS = (LINES + PASS - 1) / PASS;  // lines at a time
    const int line = threadIdx.x / COUNT, before = (CHUNK + threadIdx.x % COUNT) * UNIT;
    const unsigned above = source.first + line, most = source.length + V - 1;
    const int last = source.start + before / SIZE + V - 1;  // of the elements of a vector that starts where the line does
    const unsigned char* from = source.from + times(line, source.stride) + before;
    unsigned to = address(line);
#pragma unroll
    for (int s = 0; s < ROUNDS; ++s) {
      const unsigned behind = to % UNIT;
      const bool dealt = (THREADS % COUNT == 0 || line < PASS) && (s + 1 < ROUNDS || line + s * PASS < LINES);
      // Vectors behind a power of two of them may hold nothing of the line's part, or something of the next one.
      const bool held = CHUNK == 0 || before - int(behind) < LONG;
      const bool exists = above + s * PASS < unsigned(source.lines) && unsigned(last - behind / SIZE) < most;
      if (dealt && held) ptx::cp_async_part<UNIT>(to - behind + before, from - behind, exists ? UNIT : 0);
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
    if (exists && element < source.length && element + V > 0 && source.span.holds(from, from + UNIT)) {
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
