// Complex elements as the pipeline of gemm/simt.cuh multiplies them: four FMAs per term of a sum.
#pragma once

#include "matmill/dtype/complex.cuh"

namespace matmill {

template <class Real, bool CONJUGATE>
struct TermProduct;

// With CONJUGATE a product is one of its first factor's conjugate. The other cases need no sign in the main loop: a
// product of two conjugates is the conjugate of the product.
template <class Real, bool CONJUGATE = false>
struct alignas(2 * sizeof(Real)) Term {
  Real re, im;

  __device__ __forceinline__ TermProduct<Real, CONJUGATE> operator*(const Term& y) const { return {*this, y}; }

  __device__ __forceinline__ Term& operator+=(const Term& x) {
    re += x.re;
    im += x.im;
    return *this;
  }

  __device__ __forceinline__ Term& operator+=(const TermProduct<Real, CONJUGATE>& p) {
    const Real x_im = CONJUGATE ? -p.x.im : p.x.im;
    re += p.x.re * p.y.re;
    im += p.x.re * p.y.im;
    re -= x_im * p.y.im;
    im += x_im * p.y.re;
    return *this;
  }

  __device__ __forceinline__ operator Complex<Real>() const { return {re, im}; }
};

template <class Real, bool CONJUGATE>
struct TermProduct {
  const Term<Real, CONJUGATE>&x, &y;
};

// alpha * sum + beta * (element of C), which is not read where there is none.
template <class Real>
__device__ __forceinline__ Complex<Real> complex_output(const Factor<Real>& alpha, const Complex<Real>& sum,
                                                        const Factor<Real>& beta, const Complex<Real>* C, long long at) {
  return C == nullptr ? alpha * sum : blend(alpha, sum, beta, C[at]);
}

}  // namespace matmill
