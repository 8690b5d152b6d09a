// Complex elements, and the factors that transposes and products scale them by.
#pragma once

#include "matmill/dtype/number.cuh"

namespace matmill {

template <class Real>
struct Factor;

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  using Factor = matmill::Factor<Real>;
  Real re, im;
};

// A factor of elements, or of their conjugates: `sign` is then -1, else 1.
template <class Real>
struct Factor {
  Real re, im, sign;
};

// Spelled out, because the compiler would fuse products into sums: matmill.dispatch.transpose rounds each.
__device__ __forceinline__ float rounded_product(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ double rounded_product(double x, double y) { return __dmul_rn(x, y); }

// A real factor multiplies the parts, so that 0 times infinity is not added. A factor of 0 is that of elements that are
// not to be read: they may be NaN.
template <class Real>
__device__ __forceinline__ Complex<Real> operator*(const Factor<Real>& f, const Complex<Real>& x) {
  const Real im = f.sign * x.im, one = 1;
  const Complex<Real> scaled{rounded_product(f.re, x.re), rounded_product(f.re, im)};
  if (f.im == 0) return f.re == 0 ? Complex<Real>{} : scaled;
  return {blend(one, scaled.re, -one, rounded_product(f.im, im)),
          blend(one, scaled.im, one, rounded_product(f.im, x.re))};
}

template <class Real>
__device__ __forceinline__ Complex<Real> blend(const Factor<Real>& f, const Complex<Real>& x, const Factor<Real>& g,
                                               const Complex<Real>& y) {
  if (f.im == 0 && g.im == 0) {
    return {blend(f.re, x.re, g.re, y.re), blend(f.sign * f.re, x.im, g.sign * g.re, y.im)};
  }
  const Real one = 1;
  const Complex<Real> p = f * x, q = g * y;
  return {blend(one, p.re, one, q.re), blend(one, p.im, one, q.im)};
}

template <class Real>
struct NumberOf<Complex<Real>> {
  using Acc = Factor<Real>;
  static __device__ __forceinline__ Complex<Real> up(const Complex<Real>& x) { return x; }
  static __device__ __forceinline__ Complex<Real> down(const Complex<Real>& x) { return x; }
};

}  // namespace matmill
