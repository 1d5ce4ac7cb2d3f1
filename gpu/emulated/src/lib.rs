//! A CUDA driver without a GPU.
