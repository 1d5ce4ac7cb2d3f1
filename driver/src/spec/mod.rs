//! Wire types of the NVMe specifications.
