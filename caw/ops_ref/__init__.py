"""References of the ops that csrc/ alone has a kernel for; an op with a Triton kernel has its reference beside that."""
