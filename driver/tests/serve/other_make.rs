//! The `vfio_user` crate as the peer of our client and of our server, to detect a misreading of the protocol that ours
//! share.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::thread;

use adit_driver::bus::Bus;
use adit_driver::bus::vfio_user::VfioUser;
use adit_driver::sys::{Backing, HostMemory, SharedPages};
use vfio_bindings::bindings::vfio::{vfio_region_info, vfio_region_sparse_mmap_area};
use vfio_user::{
    Client, DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};
use vmm_sys_util::eventfd::EventFd;

use crate::{file_of, served, works};

#[test]
fn its_client_is_served() {
    let server = served();
    let mut client = Client::new(server.socket()).expect("connected");
    let mut vs = [0; 4];
    client.region_read(0, 8, &mut vs).expect("read");
    assert_eq!(u32::from_le_bytes(vs), 0x0002_0000);
    client.region_write(0, 0x24, &0x001f_001fu32.to_le_bytes()).expect("written");
    client.region_read(0, 0x24, &mut vs).expect("read");
    assert_eq!(u32::from_le_bytes(vs), 0x001f_001f);

    let bar0 = client.region(0).expect("BAR0");
    assert_eq!((bar0.size, bar0.sparse_areas.len()), (0x4000, 1));
    assert_eq!((bar0.sparse_areas[0].offset, bar0.sparse_areas[0].size), (0x1000, 0x1000));
    assert!(bar0.file_offset.is_some(), "with the file to map");

    let pages = SharedPages::allocate(8192).expect("memory");
    client.dma_map(0, 0x10_0000, 8192, file_of(&pages).as_raw_fd()).expect("mapped");
    assert_eq!(server.with(|it| it.mapping_count()), 1);
    client.dma_unmap(0x10_0000, 8192).expect("unmapped");
    assert_eq!(server.with(|it| it.mapping_count()), 0);

    let eventfd = EventFd::new(0).expect("eventfd");
    assert_eq!(client.get_irq_info(2).expect("MSI-X").count, 65);
    client.set_irqs(2, 1 << 2 | 1 << 5, 0, 1, &[eventfd.as_raw_fd()]).expect("set");
    client.set_irqs(2, 1 | 1 << 5, 0, 1, &[]).expect("a test signal");
    assert_eq!(eventfd.read().expect("signalled"), 1);
    client.reset().expect("reset");
    client.region_read(0, 0x24, &mut vs).expect("read");
    assert_eq!(vs, [0; 4], "as after power-on");
    drop(client);
    works(server.socket());
}

/// Records its requests; its registers are plain memory.
#[derive(Default)]
struct Backend {
    registers: Vec<u8>,
    mappings: Vec<(u64, u64)>,
}

impl ServerBackend for Backend {
    fn region_read(&mut self, _: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.copy_from_slice(&self.registers[offset as usize..][..data.len()]);
        Ok(())
    }

    fn region_write(&mut self, _: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.registers[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        assert_eq!((flags, offset), (DmaMapFlags::READ_WRITE, 0));
        assert!(file.expect("a file").metadata()?.len() >= size);
        self.mappings.push((address, size));
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        assert_eq!(self.mappings.pop(), Some((address, size)));
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.registers.fill(0);
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, _: u32, _: u32, _: u32, fds: Vec<File>) -> io::Result<()> {
        // It takes one file per message (`max_msg_fds`), so two vectors need two messages.
        assert_eq!((index, fds.len()), (2, 1));
        Ok(())
    }
}

fn server_of_that_make(path: &std::path::Path, pages: &SharedPages) -> Server {
    let area = vfio_region_sparse_mmap_area { offset: 0x1000, size: 0x1000 };
    let regions = (0..9).map(|index| {
        let size = if index == 0 { 0x2000 } else { 0 };
        let flags = if index == 0 { 0b111 } else { 0 };
        ServerRegion {
            region_info: vfio_region_info {
                argsz: 32,
                flags,
                index,
                cap_offset: 0,
                size,
                offset: 0,
            },
            sparse_areas: if index == 0 { vec![SparseArea { area }] } else { Vec::new() },
            mmap_fd: (index == 0).then(|| pages.file().as_raw_fd()),
        }
    });
    let irqs =
        (0..5).map(|index| IrqInfo { index, flags: 1, count: if index == 2 { 2 } else { 0 } });
    Server::new(path, true, irqs.collect(), regions.collect()).expect("socket")
}

#[test]
#[allow(unsafe_code)]
fn its_server_serves_us() {
    let path = std::env::temp_dir().join(format!("adit-other-make-{}.sock", std::process::id()));
    let pages = SharedPages::allocate(0x2000).expect("memory");
    let server = server_of_that_make(&path, &pages);
    let serving = thread::spawn(move || {
        let mut backend = Backend { registers: vec![0; 0x2000], mappings: Vec::new() };
        server.run(&mut backend).expect("served");
        assert!(backend.mappings.is_empty(), "what was mapped was unmapped");
    });
    crate::served::trust();
    let bus = VfioUser::open(&path).expect("open");
    // SAFETY: a register of that server is a place in its memory, no more.
    unsafe { bus.write64(0x28, 0x1122_3344_5566_7788) };
    assert_eq!((bus.read64(0x28), bus.read32(0x2c)), (0x1122_3344_5566_7788, 0x1122_3344));
    let memory = HostMemory::allocate(4096, Backing::SharedFile, &|_, _| ()).expect("memory");
    // SAFETY: that server writes no memory, and it is unmapped below.
    let iova = unsafe { bus.map(memory.range()) }.expect("mapped");
    assert_eq!(bus.enable_vectors(2).expect("vectors").len(), 2);
    // SAFETY: as with the register.
    let doorbell = unsafe { std::sync::Arc::<VfioUser>::clone(&bus).doorbell(0x1008) };
    doorbell.expect("doorbell").ring(7);
    let rung = pages.atomics().dwords()[0x1008 / 4].load(Ordering::Acquire);
    assert_eq!(u32::from_le(rung), 7, "by the mapped page");
    bus.reset().expect("reset");
    assert_eq!(bus.read64(0x28), 0);
    // SAFETY: it is what was mapped above.
    unsafe { bus.unmap(iova, 4096) }.expect("unmapped");
    drop(bus);
    serving.join().expect("no panic in the other server");
}
