//! Admin commands.

use adit_driver::spec::feature::Fid;
use adit_driver::spec::{
    Cid, Cns, FeatureSelect, Iova, Lid, Nsid, Qid, QueueEntries, QueuePriority, Sqe,
};

use super::{Arena, Case, DataPointer, LISTS, PAGE};

/// A queue pair created and deleted here.
const SPARE: Qid = Qid(5);
/// The queue pair that I/O commands use.
const USED: Qid = Qid(1);
/// Beyond the queues the controller grants.
const BEYOND: Qid = Qid(300);

/// Identify, with the data it returns.
pub(super) fn identify(arena: Arena) -> Vec<Case> {
    let ask = |name, cns, nsid| {
        Case::admin(name, Sqe::identify(cns, Nsid(nsid), 0)).data(arena, PAGE).showing(PAGE)
    };
    vec![
        ask("identify controller", Cns::CONTROLLER, 0),
        ask("identify namespace 1", Cns::NAMESPACE, 1),
        ask("identify namespace 2", Cns::NAMESPACE, 2),
        ask("identify namespace 9", Cns::NAMESPACE, 9),
        ask("identify namespace 7, inactive", Cns::NAMESPACE, 7),
        ask("identify namespace 0", Cns::NAMESPACE, 0),
        ask("identify namespace 300, beyond NN", Cns::NAMESPACE, 300),
        ask("identify all namespaces", Cns::NAMESPACE, u32::MAX),
        ask("identify active namespaces", Cns::ACTIVE_NAMESPACES, 0),
        ask("identify active namespaces after 1", Cns::ACTIVE_NAMESPACES, 1),
        ask("identify active namespaces after FFFFFFFE", Cns::ACTIVE_NAMESPACES, u32::MAX - 1),
        ask("identify descriptors of namespace 1", Cns::NAMESPACE_DESCRIPTORS, 1),
        ask("identify descriptors of namespace 2", Cns::NAMESPACE_DESCRIPTORS, 2),
        ask("identify descriptors of namespace 0", Cns::NAMESPACE_DESCRIPTORS, 0),
        ask("identify nvm namespace 1", Cns::COMMAND_SET_NAMESPACE, 1),
        ask("identify nvm controller", Cns::COMMAND_SET_CONTROLLER, 0),
        ask("identify command sets", Cns::COMMAND_SETS, 0),
        ask("identify controller of csi 30", Cns::COMMAND_SET_CONTROLLER, 0)
            .bent(|dwords| dwords[11] |= 0x30 << 24),
        ask("identify cns FF", Cns(0xff), 0),
    ]
}

fn log(arena: Arena, name: &'static str, lid: Lid, bytes: u32, offset: u64) -> Case {
    let sqe = Sqe::get_log_page(lid, Nsid::ALL, bytes, offset, false).expect("whole dwords");
    Case::admin(name, sqe).data(arena, bytes as usize).showing(bytes as usize)
}

pub(super) fn logs(arena: Arena) -> Vec<Case> {
    vec![
        log(arena, "log smart", Lid::SMART_HEALTH, 512, 0),
        log(arena, "log smart from 256", Lid::SMART_HEALTH, 256, 256),
        log(arena, "log smart from beyond its end", Lid::SMART_HEALTH, 512, 1 << 20),
        log(arena, "log firmware slots", Lid::FIRMWARE_SLOT, 512, 0),
        log(arena, "log effects", Lid::COMMANDS_SUPPORTED, 4096, 0),
        log(arena, "log changed namespaces", Lid::CHANGED_NAMESPACES, 4096, 0),
        log(arena, "log 70", Lid(0x70), 512, 0),
        log(arena, "log smart of 1 MiB", Lid::SMART_HEALTH, 1 << 20, 0).showing(0),
    ]
}

/// Logs that show effects of the earlier commands.
pub(super) fn logs_at_the_end(arena: Arena) -> Vec<Case> {
    vec![
        log(arena, "log errors at the end", Lid::ERROR_INFORMATION, 64, 0),
        log(arena, "log smart at the end", Lid::SMART_HEALTH, 512, 0),
    ]
}

pub(super) fn features(arena: Arena) -> Vec<Case> {
    let get = |name, fid, select| {
        Case::admin(name, Sqe::get_features(fid, Nsid::NONE, 0, select)).data(arena, PAGE)
    };
    let set = |name, fid, cdw11, save| {
        Case::admin(name, Sqe::set_features(fid, Nsid::NONE, cdw11, save)).data(arena, PAGE)
    };
    let current = FeatureSelect::Current;
    // Kelvin; the other bits select "over" for the composite temperature.
    let threshold = 400;
    vec![
        get("get arbitration", Fid::ARBITRATION, current),
        get("get power management", Fid::POWER_MANAGEMENT, current),
        get("get temperature threshold", Fid::TEMPERATURE_THRESHOLD, current),
        set("set temperature threshold to 400", Fid::TEMPERATURE_THRESHOLD, threshold, false),
        get("get temperature threshold of 400", Fid::TEMPERATURE_THRESHOLD, current),
        get(
            "get default temperature threshold",
            Fid::TEMPERATURE_THRESHOLD,
            FeatureSelect::Default,
        ),
        get("get write cache", Fid::VOLATILE_WRITE_CACHE, current),
        set("set write cache off", Fid::VOLATILE_WRITE_CACHE, 0, false),
        get("get write cache that is off", Fid::VOLATILE_WRITE_CACHE, current),
        set("set write cache on", Fid::VOLATILE_WRITE_CACHE, 1, false),
        get("get number of queues", Fid::NUMBER_OF_QUEUES, current),
        set("set number of queues with queues in use", Fid::NUMBER_OF_QUEUES, 0x0003_0003, false),
        set("set number of queues to 65536", Fid::NUMBER_OF_QUEUES, 0xffff_ffff, false),
        get("get interrupt vector configuration", Fid::INTERRUPT_VECTOR_CONFIG, current),
        get("get asynchronous event configuration", Fid::ASYNC_EVENT_CONFIG, current),
        get("get timestamp", Fid::TIMESTAMP, current).showing(8),
        get(
            "get what number of queues supports",
            Fid::NUMBER_OF_QUEUES,
            FeatureSelect::SupportedCapabilities,
        ),
        get("get feature 7B", Fid(0x7b), current),
        set("set feature 7B", Fid(0x7b), 0, false),
        set("set and save arbitration", Fid::ARBITRATION, 0, true),
    ]
}

fn at(prp1: Iova) -> DataPointer {
    DataPointer::Prp { prp1, prp2: Iova(0) }
}

fn create_cq(arena: Arena, name: &'static str, qid: Qid, vector: Option<u16>) -> Case {
    let entries = QueueEntries::new(64).expect("2 to 65536");
    Case::admin(name, Sqe::create_io_cq(qid, entries, vector, true)).at(at(arena.at(LISTS)))
}

fn create_sq(arena: Arena, name: &'static str, qid: Qid, cqid: Qid) -> Case {
    let entries = QueueEntries::new(64).expect("2 to 65536");
    let sqe = Sqe::create_io_sq(qid, cqid, entries, QueuePriority::Medium);
    Case::admin(name, sqe).at(at(arena.at(LISTS + PAGE)))
}

/// Replaces a queue's size as encoded on the wire.
fn sized(case: Case, size_z: u32) -> Case {
    case.bent(|dwords| dwords[10] = size_z << 16 | dwords[10] & 0xffff)
}

pub(super) fn queues(arena: Arena) -> Vec<Case> {
    let cq = |name, qid| create_cq(arena, name, qid, None);
    let sq = |name, qid, cqid| create_sq(arena, name, qid, cqid);
    let delete_cq = |name, qid| Case::admin(name, Sqe::delete_io_cq(qid));
    let delete_sq = |name, qid| Case::admin(name, Sqe::delete_io_sq(qid));
    vec![
        cq("create cq 0", Qid::ADMIN),
        cq("create cq 300", BEYOND),
        cq("create cq 1, which there is", USED),
        sized(cq("create cq 5 of 1 entry", SPARE), 0),
        sized(cq("create cq 5 of 65536 entries", SPARE), 0xffff),
        create_cq(arena, "create cq 5 with vector 5000", SPARE, Some(5000)),
        cq("create cq 5 not contiguous", SPARE).bent(|dwords| dwords[11] &= !1),
        cq("create cq 5 at an odd address", SPARE).at(at(arena.at(LISTS + 16))),
        sq("create sq 5 on cq 5, which there is not", SPARE, SPARE),
        cq("create cq 5", SPARE),
        sq("create sq 5 on cq 0", SPARE, Qid::ADMIN),
        sq("create sq 5 on cq 300", SPARE, BEYOND),
        sq("create sq 0", Qid::ADMIN, SPARE),
        sq("create sq 300", BEYOND, SPARE),
        sq("create sq 1, which there is", USED, USED),
        sized(sq("create sq 5 of 1 entry", SPARE, SPARE), 0),
        sized(sq("create sq 5 of 65536 entries", SPARE, SPARE), 0xffff),
        sq("create sq 5 not contiguous", SPARE, SPARE).bent(|dwords| dwords[11] &= !1),
        sq("create sq 5 at an odd address", SPARE, SPARE).at(at(arena.at(LISTS + 16))),
        sq("create sq 5", SPARE, SPARE),
        delete_cq("delete cq 5, which sq 5 uses", SPARE),
        delete_sq("delete sq 5", SPARE),
        delete_sq("delete sq 5 again", SPARE),
        delete_cq("delete cq 5", SPARE),
        delete_cq("delete cq 5 again", SPARE),
        delete_sq("delete sq 0", Qid::ADMIN),
        delete_cq("delete cq 0", Qid::ADMIN),
        delete_sq("delete sq 300", BEYOND),
        delete_cq("delete cq 300", BEYOND),
    ]
}

/// All other commands.
pub(super) fn others(arena: Arena) -> Vec<Case> {
    let identify =
        |name| Case::admin(name, Sqe::identify(Cns::CONTROLLER, Nsid::NONE, 0)).data(arena, PAGE);
    let odd_shadow = Sqe::doorbell_buffer_config(arena.at(LISTS + 8), arena.at(LISTS + PAGE));
    vec![
        Case::admin("abort of no command", Sqe::abort(USED, Cid(0xfff0))),
        Case::admin("doorbell buffer at an odd address", odd_shadow),
        Case::admin("admin opcode C3", Sqe::new(0xc3, Nsid::NONE)),
        identify("identify with psdt 01").bent(|dwords| dwords[0] |= 1 << 14),
        identify("identify, first of two fused").bent(|dwords| dwords[0] |= 1 << 8),
        identify("identify with prp2 not page aligned")
            .at(DataPointer::Prp { prp1: arena.at(2048), prp2: arena.at(PAGE + 64) }),
        identify("identify over two pages")
            .at(DataPointer::Prp { prp1: arena.at(2048), prp2: arena.at(PAGE) })
            .showing(2 * PAGE - 2048),
    ]
}
