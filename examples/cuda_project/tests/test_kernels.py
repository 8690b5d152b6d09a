"""The project's kernels, tested on a machine without a GPU."""

import numpy as np
import pytest


@pytest.mark.parametrize(("kernel", "dtype"), [("axpy<float>", np.float32), ("axpy<double>", np.float64)])
def test_axpy(emulate, kernel, dtype):
    x, y = np.arange(1000, dtype=dtype), np.ones(1000, dtype)
    emulate("../src/saxpy.cu", kernel, 4, 256, 1000, 2.5, x, y)
    np.testing.assert_allclose(y, 2.5 * x + 1)


@pytest.mark.emulate(options=["-DBINS=16"], initcheck=True)
def test_histogram(emulate):
    values = np.random.default_rng(0).integers(0, 17, 2000, np.uint32)
    counts, beyond = np.zeros(16, np.uint32), np.zeros(1, np.int32)
    report = emulate("../src/histogram.cu", "histogram", 2, 128, values, values.size, counts, beyond)
    assert (counts == np.bincount(values, minlength=17)[:16]).all()
    assert beyond[0] == 1
    assert report.counters.barriers == 16
    assert {hazard.kind for hazard, _ in report.suppressed} == {"same-value"}
