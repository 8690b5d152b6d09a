// D = alpha * X + beta * Y where one side is short, the other long, and D's columns lie along X's lines: blocks take
// portions of the long side, see portion.cuh.
//
//                    tall: D has few columns                     wide: D has few rows
//   X                N lines, one per column, M elements each    one run
//   Y and D          one run                                     M lines, one per row, G * N elements each
//
// A run is one piece of memory whatever the short side is: it is aligned if its operand starts on 16 bytes, and goes
// element by element if not. Lines may start anywhere (APART). X is then loaded from the last multiple of 16 bytes on, a
// vector more for each line, and gathered from behind what was not asked for. Of D a portion's part of each row is moved
// to the left until it starts on 16 bytes, and X is loaded from V columns before. Neither depends on the portion, so both
// are in the places worked out once.
#include "matmill/transpose/chunk.cuh"

using matmill::Index;

constexpr bool WIDE = Config::WIDE != 0, APART = Config::APART != 0;
constexpr int SHORT = WIDE ? Config::M : Config::N, LONG = WIDE ? Config::G * Config::N : Config::M;
constexpr int ROOM = APART ? 16 / int(sizeof(Scalar)) : 0;  // elements of a line before those that a portion makes
constexpr int LINE = WIDE ? Config::M : LONG + ROOM;        // of X in shared memory
using Portion = matmill::Portion<Scalar, Config, LINE, APART ? SHORT : 0>;
using Vector = Portion::Vector;
constexpr int V = Portion::V, Y_WIDTH = Config::Y_WIDTH;

struct Operands {
  const Scalar *X, *Y;
  Scalar* D;
  int length;  // of the long side
  // From line to line of those operands that have lines.
  Index x_pitch, y_pitch, d_pitch;
  bool aligned;  // the operand that is a run, D or X

  __device__ __forceinline__ void copy_x(unsigned char* part, Index portion) const {
    const Scalar* const from = X + portion * (WIDE ? Portion::RUN : LONG);
    const int left = WIDE ? of_run(portion) : of_line(portion), reach = WIDE ? Portion::RUN : LONG + ROOM;
    const bool all = (!APART || portion > 0) && left >= reach;
#pragma unroll
    for (int s = 0; s < Portion::Given::SLOTS; ++s) {
      if (!Portion::Given::present(s)) continue;
      const Spot spot = x_spot(Portion::Given::vector(s));
      const Range range = all ? Range{0, V} : existing(spot, portion, left);
      Portion::copied(part, Portion::Given::vector(s), from + spot.offset, range.begin, range.end, !WIDE || aligned);
    }
  }

  __device__ __forceinline__ void fetch_y(Vector (&y)[Portion::Made::SLOTS], Index portion) const {
    const Scalar* const from = Y + portion * (WIDE ? LONG : Portion::RUN);
#pragma unroll
    for (int s = 0; s < Portion::Made::SLOTS; ++s) {
      if (!Portion::Made::present(s)) continue;
      const Spot spot = d_spot(Portion::Made::vector(s), y_pitch);
      const Range range = made(spot, portion);
      y[s] = Portion::template fetched<Y_WIDTH>(from + spot.offset, range.begin, range.end, WIDE || aligned);
    }
  }

  __device__ __forceinline__ void copy_y(unsigned char* part, Index portion) const {
    const Scalar* const from = Y + portion * (WIDE ? LONG : Portion::RUN);
#pragma unroll
    for (int s = 0; s < Portion::Made::SLOTS; ++s) {
      if (!Portion::Made::present(s)) continue;
      const Spot spot = d_spot(Portion::Made::vector(s), y_pitch);
      const Range range = made(spot, portion);
      Portion::parked(part, Portion::Made::vector(s), from + spot.offset, range.begin, range.end, WIDE || aligned);
    }
  }

  __device__ __forceinline__ void store(const Vector& v, int s, Index portion) const {
    Scalar* const to = D + portion * (WIDE ? LONG : Portion::RUN);
    const Spot spot = d_spot(Portion::Made::vector(s), d_pitch);
    const Range range = made(spot, portion);
    Portion::stored(to + spot.offset, v, range.begin, range.end, WIDE || aligned);
  }

  __device__ __forceinline__ int moved(int row, int column) const {
    return !APART ? 0 : WIDE ? (ROOM - behind(row)) * SHORT : behind(column);
  }

 private:
  // Where a vector of a portion begins: elements from that of the portion, and from that of the line's part of it.
  struct Spot {
    Index offset;
    int inside;
  };
  __device__ __forceinline__ Spot x_spot(int vector) const {
    if constexpr (WIDE) {
      const int inside = vector * V - ROOM * SHORT;
      return {inside, inside};
    } else {
      const int line = vector / (LINE / V), inside = vector % (LINE / V) * V - behind(line);
      return {line * x_pitch + inside, inside};
    }
  }
  __device__ __forceinline__ Spot d_spot(int vector, Index pitch) const {
    const int at = vector * V;
    if constexpr (WIDE) {
      constexpr int N = Portion::N, MATRIX = SHORT * N;
      const int row = at % MATRIX / N, inside = at / MATRIX * N + at % N - behind(row);
      return {row * pitch + inside, inside};
    } else {
      return {at, at};
    }
  }
  // Elements from the last multiple of V in memory to the start of a line.
  __device__ __forceinline__ int behind(int line) const {
    if constexpr (!APART) return 0;
    const Scalar* const start = WIDE ? D + line * d_pitch : X + line * x_pitch;
    return unsigned(reinterpret_cast<unsigned long long>(start)) / sizeof(Scalar) % V;
  }

  // Elements of a line, and of a run as far as a portion reaches, from where a portion begins.
  __device__ __forceinline__ int of_line(Index portion) const { return length - int(portion * LONG); }
  __device__ __forceinline__ int of_run(Index portion) const { return min(of_line(portion), LONG) * SHORT; }

  // Which elements of a vector exist where `left` do from the portion's part of its line on. No portion but the first
  // lacks what is before that.
  struct Range {
    int begin, end;
  };
  static __device__ __forceinline__ Range existing(const Spot& spot, Index portion, int left) {
    return {portion > 0 ? 0 : -spot.inside, left - spot.inside};
  }
  // The same for a vector of Y or D; all exist in most portions.
  __device__ __forceinline__ Range made(const Spot& spot, Index portion) const {
    const bool all = (!WIDE || !APART || portion > 0) && of_line(portion) >= LONG;
    return all ? Range{0, V} : existing(spot, portion, WIDE ? of_line(portion) : of_run(portion));
  }
};

// D has `length` rows (tall) or columns (wide). Pitches are those of lines; a run's is of no interest. Y and D may be
// the same memory.
extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM)
    transpose_slim(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const bool aligned = matmill::on_vectors(WIDE ? args.X : args.D);
  const Operands operands{args.X, args.Y, args.D, args.length, args.x_pitch, args.y_pitch, args.d_pitch, aligned};
  // Rows that are moved to the left end up to V - 1 columns further on.
  const int reach = WIDE && APART ? V - 1 : 0;
  Portion::make(shared, operands, (args.length + reach + LONG - 1) / LONG, args.alpha, args.beta);
}
