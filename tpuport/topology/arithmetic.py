"""What has to be computed, by a traced function: two FLOPs for each multiplication of its products and convolutions."""

from jax.extend.core import ClosedJaxpr

from tpuport.topology import kernels


def model_flops(jaxpr: ClosedJaxpr) -> float:
    """FLOPs of a traced function, on all devices together: of matrix products, convolutions and Pallas kernels.

    A product of [M, K] and [K, N] has 2 * M * N * K, and so has a convolution, with K the channels of a group times
    the kernel's size. A product by groups has each row once. A scan counts as often as it runs, the body of another
    loop once, and of branches the costliest or, where code differs by platform, a TPU's. A Pallas kernel has its body's
    products at those steps of its grid that do them where that is known before it runs, or else what it estimates, or
    else at most that many. A shard_map has its body's for each device along the axes that its arguments or results are
    split over; along others all do the same. Devices that share out groups have all rows, and do those of their own.
    """
    return kernels.count_work(jaxpr).flops
