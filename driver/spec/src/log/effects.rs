//! Commands Supported and Effects log (LID 05h, Base 5.16.1.6).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::bit_flags;

/// Commands Supported and Effects log (Base 5.16.1.6).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandsSupported {
    /// Admin Command Supported, by opcode.
    pub acs: [U32; 256],
    /// I/O Command Supported, by opcode.
    pub iocs: [U32; 256],
    reserved2048: [u8; 2048],
}

const _: () = assert!(size_of::<CommandsSupported>() == 4096);

impl CommandsSupported {
    /// Effects of an admin command.
    pub const fn admin(&self, opcode: u8) -> CommandEffects {
        CommandEffects(self.acs[opcode as usize].get())
    }

    /// Effects of an I/O command.
    pub const fn io(&self, opcode: u8) -> CommandEffects {
        CommandEffects(self.iocs[opcode as usize].get())
    }
}

bit_flags! {
    /// Commands Supported and Effects data structure of one command (Base 5.16.1.6).
    CommandEffects(u32) {
        0 csupp, "Command Supported";
        1 lbcc, "Logical Block Content Change";
        2 ncc, "Namespace Capability Change";
        3 nic, "Namespace Inventory Change";
        4 ccc, "Controller Capability Change";
        19 uuid_selection, "UUID Selection Supported";
    }
}

impl CommandEffects {
    /// Command Submission and Execution: 0 no restriction, 1 alone in its namespace, 2 alone.
    pub const fn cse(self) -> u8 {
        (self.0 >> 16) as u8 & 7
    }

    /// Command Scope: bits for namespace, controller, NVM set, endurance group, domain and NVM subsystem.
    pub const fn csp(self) -> u16 {
        (self.0 >> 20) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;
    use zerocopy::FromZeros;

    #[test]
    fn commands_are_found_by_opcode() {
        let mut built = CommandsSupported::new_zeroed();
        built.acs[0x06] = 1.into();
        built.iocs[0x01] = 0x0011_0003.into();
        let view = CommandsSupported::view(built.as_bytes()).unwrap();
        assert!(view.admin(0x06).csupp() && !view.admin(0x08).csupp());
        assert!(view.io(1).csupp() && view.io(1).lbcc() && !view.io(1).ncc());
        assert_eq!((view.io(1).cse(), view.io(1).csp()), (1, 1));
    }
}
