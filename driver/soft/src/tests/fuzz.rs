//! The controller does not panic and stays bounded, whatever the host writes.

use super::*;
use proptest::prelude::*;

/// Favours existing opcodes and addresses in RAM.
fn command() -> impl Strategy<Value = Cmd> {
    let opcode = prop_oneof![3 => prop::sample::select(vec![0u8, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 0x15, 0x19, 0x7c]), 1 => any::<u8>()];
    let small = prop_oneof![3 => 0u32..20, 2 => any::<u32>()];
    let address = prop_oneof![
        4 => (0..RAM_BYTES as u64).prop_map(|at| RAM + (at & !0xfff)),
        2 => (0..RAM_BYTES as u64).prop_map(|at| RAM + at),
        1 => any::<u64>(),
    ];
    let flags = prop_oneof![4 => Just(0u32), 1 => 0u32..=0xff];
    let length = any::<u32>();
    (opcode, flags, small.clone(), (address.clone(), address), prop::array::uniform6(small), length)
        .prop_map(|(opcode, flags, nsid, (first, second), cdws, length)| {
            let mut command = Cmd::new(opcode).nsid(nsid).prp(first, second);
            command.0[0] |= flags << 8;
            command.0[10..].copy_from_slice(&cdws);
            if flags & 0x40 != 0 {
                command.0[8] = length & 0xffff;
                command.0[9] = length & 0xf000_0000;
            }
            command
        })
}

/// All kinds of controllers: plain, cached, slow, and with every fault.
const TAILS: [&str; 4] = [
    "",
    ",vwc=16k,lba=4096",
    ",model=990pro,vwc=1M",
    ",vwc=64k,faults=lose@any:p=0.1+delay(2ms)@any:p=0.1+media@p=0.2+rot@p=0.2+misdirect@p=0.2+again(1ms)@any:p=0.1\
     +mute@p=0.1+hold@p=0.1+phase@p=0.02+cid@p=0.1",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_never_panic(
        commands in prop::collection::vec((any::<bool>(), command()), 1..40),
        noise in any::<u64>(),
        tail in prop::sample::select(TAILS.to_vec()),
    ) {
        let mut rig = Rig::new(&format!("mem=1M,namespaces=3,cmb=16k,mdts=4,ioqueues=8{tail}"));
        let junk = pattern(0x4000, noise as u8);
        rig.poke(DATA, &junk);
        for (is_io, command) in commands {
            rig.submit(u16::from(is_io), command);
            for _ in 0..3 {
                rig.step();
            }
            if rig.csts() & 2 != 0 {
                break;
            }
            rig.reap(0);
            rig.reap(1);
        }
        rig.controller.cut_power(&rig.ram, noise);
        rig.controller.restore_power();
        rig.step();
        prop_assert_eq!(rig.csts(), 0);
    }

    #[test]
    fn random_register_writes_never_panic(
        writes in prop::collection::vec((0u32..0x1400, any::<bool>(), any::<u64>()), 1..60),
    ) {
        let mut rig = Rig::new("mem=1M,cmb=16k,ioqueues=8");
        for (offset, is_wide, value) in writes {
            let width = if is_wide { 8 } else { 4 };
            rig.controller.write_register(offset, width, value);
            rig.controller.read_register(offset, width);
            rig.step();
        }
    }
}
