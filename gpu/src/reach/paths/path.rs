//! The paths by name, best first.

/// A path, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryPath {
    /// The GPU shares the CPU's page tables: its memory is mapped at its own address.
    Coherent,
    /// Maps the memory's dma-buf through iommufd.
    DmaBufIommufd,
    /// Maps the memory's dma-buf into this process, and that mapping for the device.
    DmaBufMmap,
    /// As `DmaBufMmap`, by the kernel module gdrdrv.
    Gdrdrv,
    /// Host memory that both the GPU and the device access.
    PinnedHost,
    /// Without the GPU.
    CpuOnly,
}

impl MemoryPath {
    /// All paths, best first.
    pub const ALL: [MemoryPath; 6] = [
        MemoryPath::Coherent,
        MemoryPath::DmaBufIommufd,
        MemoryPath::DmaBufMmap,
        MemoryPath::Gdrdrv,
        MemoryPath::PinnedHost,
        MemoryPath::CpuOnly,
    ];

    /// Paths to the GPU's own memory, best first.
    pub const TO_GPU: [MemoryPath; 4] = [
        MemoryPath::Coherent,
        MemoryPath::DmaBufIommufd,
        MemoryPath::DmaBufMmap,
        MemoryPath::Gdrdrv,
    ];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            MemoryPath::Coherent => "coherent memory",
            MemoryPath::DmaBufIommufd => "dma-buf through iommufd",
            MemoryPath::DmaBufMmap => "dma-buf mapped here",
            MemoryPath::Gdrdrv => "gdrdrv",
            MemoryPath::PinnedHost => "pinned host memory",
            MemoryPath::CpuOnly => "CPU only",
        }
    }
}
