"""The paper's PHVM: the same inner products with neighbouring threads on neighbouring terms."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Rung
from matmill.ladder.documents import S3
from matmill.ladder.inner.common import any_size_arguments, atomic_kernel, resident_grid, takes
from matmill.problem import Gemm

PHVM: Rung[Gemm] = Rung(
    name="phvm",
    source=S3,
    changes="Thread i takes the terms i, i + GS * BS, i + 2 * GS * BS, …: a warp's loads coalesce.",
    predicts="4 sectors per request of float32 along k instead of 32. E is still read n times and F m times: at least "
    "m times the time that the bytes need where m = n (5 for 5 x k x 5), and a row-major F costs n sectors where one "
    "would do. m * n * GS atomics: 21,600 for 5 x 5 outputs and 864 blocks.",
    claim="S3: best launch found (GS 136, BS 512) on RTX 2080 Ti and (GS 864, BS 256) on A100; faster than cublasSgemm "
    "on MTXA (3 x 5e7 x 3), MTXB (5 x 3e8 x 5) and MTXC (7 x 2e9 x 7), more so at small m. Its model prints a factor "
    "GS too many in the last term, and ranks launches whose predictions differ by 0.5%; its time for MTX1 on an A100 "
    "is 80 times what the traffic needs.",
    kernel=atomic_kernel("phvm", __name__, Config.of(BS=256, GS=1056), any_size_arguments, takes),
    tune=resident_grid,
)
