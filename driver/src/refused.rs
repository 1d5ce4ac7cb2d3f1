//! Programs that safe code must not be able to express: each would make a device access memory that is not
//! its own.
//!
//! Each is compiled twice: with its last call bare and unsafe code forbidden it must fail, and with that call
//! marked unsafe it must compile. So it fails because this call is unsafe and for no other reason.
#![cfg(doctest)]

macro_rules! both {
    ($name:ident, $start:literal, $call:literal) => {
        #[doc = concat!("```compile_fail,E0133\n#![forbid(unsafe_code)]\n", program!($start, $call, ";"))]
        #[doc = concat!("```no_run\n", program!($start, "unsafe { ", $call, "};"))]
        struct $name;
    };
}

/// Builds a program: the common prelude, then `part`.
macro_rules! program {
    ($($part:literal),*) => {
        concat!(
            "# #![allow(unused)]\n",
            "use adit_driver::bus::{Bus, Doorbell, soft::{Drive, SoftBus}};\n",
            "use adit_driver::spec::Iova;\n",
            "use adit_driver::sys::{Backing, HostMemory, SharedPages};\n",
            "use adit_driver::{Controller, ControllerOptions};\n",
            "let bus = SoftBus::new(\"mem=1M,cmb=1M\".parse()?, Drive::Manual)?;\n",
            $($part,)*
            "\n# Ok::<(), Box<dyn std::error::Error>>(())\n```",
        )
    };
}

both!(
    MapAndFree,
    "let memory = HostMemory::allocate(4096, Backing::Any, &|_, _| ())?;\n",
    "drop((bus.map(memory.range()), memory))"
);

both!(
    UnmapABuffer,
    "let controller = Controller::attach(bus.clone(), &ControllerOptions::default())?;
     let _buffer = controller.allocate(4096)?;\n",
    "drop(bus.unmap(Iova(0x1_0000_0000), 4096))"
);

both!(
    MapAFileOfAnothers,
    "let pages = SharedPages::allocate(4096)?;\n",
    "drop(bus.map_file(pages.file(), 0, 4096))"
);

both!(
    MoveTheAdminQueue,
    "let _controller = Controller::attach(bus.clone(), &ControllerOptions::default())?;\n",
    "bus.write64(0x28, 0x1_0000_0000)"
);

both!(
    EnableBehindTheDriversBack,
    "let _controller = Controller::attach(bus.clone(), &ControllerOptions::default())?;\n",
    "bus.write32(0x14, 0x0046_0001)"
);

both!(
    RingForOldCommands,
    "let _controller = Controller::attach(bus.clone(), &ControllerOptions::default())?;\n",
    "bus.clone().doorbell(0x1000)?.ring(9)"
);

both!(DoorbellOverARegister, "", "Doorbell::message(bus, 0x28).ring(0x1000)");

both!(WriteIntoTheControllersQueues, "", "bus.bar_window(2, 0, 4096)?.write64(24, 0x1000)");

both!(
    WriteAsTheDevice,
    "",
    "bus.with_memory(|memory| drop(memory.write(Iova(0x1_0000_0000), &[1])))"
);

both!(
    TrustAServerWithoutSayingSo,
    "let target = \"vfio-user:/run/x/cntrl\".parse()?;\n",
    "adit_driver::bus::vfio_user::trust_servers(); Controller::open(&target, &ControllerOptions::default())?"
);

/// `with_controller` lends a bus's controller without its registers; a controller of its own reaches only the
/// memory it is given:
/// ```compile_fail,E0599
/// use adit_driver::bus::soft::{Drive, SoftBus};
/// let bus = SoftBus::new("mem=1M".parse()?, Drive::Manual)?;
/// bus.with_controller(|controller| controller.write_register(0x28, 8, 0x1_0000_0000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// ```no_run
/// use adit_driver::bus::soft::{Drive, SoftBus};
/// let bus = SoftBus::new("mem=1M".parse()?, Drive::Manual)?;
/// bus.with_controller(|controller| controller.fail());
/// adit_driver::soft::Controller::new("mem=1M".parse()?)?.write_register(0x28, 8, 0x1_0000_0000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
struct MoveTheAdminQueueFromInside;

/// A window is created from a file, whose write permission the system checks, not from any mapping:
/// ```compile_fail,E0599
/// let file = std::fs::File::open("/dev/zero")?;
/// let map = memmap2::MmapOptions::new().len(4096).map_raw_read_only(&file)?;
/// adit_driver::sys::Window::new(std::sync::Arc::new(map)).write32(0, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// ```no_run
/// let file = std::fs::File::open("/dev/zero")?;
/// let _map = memmap2::MmapOptions::new().len(4096).map_raw_read_only(&file)?;
/// adit_driver::sys::Window::map(std::os::fd::AsFd::as_fd(&file), 0, 4096)?.write32(0, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
struct WriteToPagesThatMayOnlyBeRead;
