// An empty kernel: the cost of a launch alone.
extern "C" __global__ void empty() {}
