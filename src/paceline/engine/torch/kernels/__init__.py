"""Operations on tensors that have a Triton kernel on CUDA and plain torch elsewhere: one package each."""
