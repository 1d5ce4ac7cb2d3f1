//! Mapped, lost, refused and proxied doorbells of a software controller, with the emulated GPU.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use adit_driver::bus::Doorbell;
use adit_driver::bus::soft::SoftBus;

use super::*;
use crate::cuda::program::Program;
use crate::cuda::{Endless, Registration, Runner};
use crate::options::{DoorbellChoice, EngineChoice, KernelChoice, Options, Place, ProxyOptions};
use crate::reach::device::Device;
use crate::reach::paths::tests::Rig;
use crate::reach::pool::Pool;
use crate::reach::self_test::{self, Chosen};
use crate::rings::uring::GioUring;

fn choose(rig: &Rig, choice: DoorbellChoice, is_device: bool) -> Result<Chosen> {
    choose_on(&rig.gpu, rig, choice, is_device)
}

fn choose_on(gpu: &Arc<Gpu>, rig: &Rig, choice: DoorbellChoice, is_device: bool) -> Result<Chosen> {
    let program = Program::load(gpu)?;
    let proxy = || ProxyThread::start(gpu, &ProxyOptions::default());
    let (controller, namespace) = (Arc::clone(&rig.controllers[0]), rig.namespace.clone());
    let mapped = Doorbells::mapped_as(gpu, is_device);
    let device = Device { controller, namespace };
    self_test::choose(mapped, (gpu, &program), &device, choice, proxy)
}

#[test]
fn doorbells_that_work_are_mapped() {
    adit_gpu_emulated::load();
    let rig = Rig::new(1);
    assert!(!has_registers(&rig.controllers[0]), "its doorbells are memory");
    let chosen = choose(&rig, DoorbellChoice::Auto, false).expect("chosen");
    assert_eq!((chosen.doorbells.name(), chosen.why_not_mapped.is_none()), ("mapped", true));
    drop(chosen.doorbells);
    rig.finish();
}

#[test]
fn registers_have_to_be_touched_before_they_are_registered() {
    adit_gpu_emulated::alone(
        "io-register=needs-touch",
        concat!(module_path!(), "::registers_have_to_be_touched_before_they_are_registered"),
        || {
            let rig = Rig::new(1);
            let chosen = choose(&rig, DoorbellChoice::Mapped, true).expect("chosen");
            assert_eq!(chosen.doorbells.name(), "mapped");
        },
    );
}

/// Checks that stores to mapped registers are found not to arrive, and that the proxy rings instead.
fn rings_by_proxy(rig: &Rig) {
    let chosen = choose(rig, DoorbellChoice::Auto, true).expect("chosen");
    assert_eq!(chosen.doorbells.name(), "proxy");
    let why = chosen.why_not_mapped.expect("a reason").to_string();
    assert!(why.contains("took no notice until the CPU rang"), "{why}");
}

#[test]
fn a_store_that_does_not_arrive_is_found_and_the_proxy_rings() {
    adit_gpu_emulated::alone(
        "io-register=lost",
        concat!(module_path!(), "::a_store_that_does_not_arrive_is_found_and_the_proxy_rings"),
        || {
            let rig = Rig::new(1);
            rings_by_proxy(&rig);
            let error = choose(&rig, DoorbellChoice::Mapped, true).expect_err("as asked");
            assert!(error.is_unavailable(), "{error}");
            rig.finish();
        },
    );
}

#[test]
fn a_head_that_does_not_arrive_is_found_as_well() {
    adit_gpu_emulated::alone(
        "io-register=no-heads",
        concat!(module_path!(), "::a_head_that_does_not_arrive_is_found_as_well"),
        || {
            let rig = Rig::new(1);
            rings_by_proxy(&rig);
            rig.finish();
        },
    );
}

#[test]
fn a_gpu_that_is_not_let_at_registers_says_what_would_let_it() {
    adit_gpu_emulated::alone(
        "io-register=not-permitted",
        concat!(module_path!(), "::a_gpu_that_is_not_let_at_registers_says_what_would_let_it"),
        || {
            let rig = Rig::new(1);
            let chosen = choose(&rig, DoorbellChoice::Auto, true).expect("chosen");
            let why = chosen.why_not_mapped.expect("a reason").to_string();
            assert!(why.contains("CAP_SYS_ADMIN") && why.contains("PeerMappingOverride"), "{why}");
        },
    );
}

#[test]
fn a_queue_whose_doorbell_the_gpu_may_still_ring_stays() {
    adit_gpu_emulated::alone(
        "",
        concat!(module_path!(), "::a_queue_whose_doorbell_the_gpu_may_still_ring_stays"),
        || {
            let rig = Rig::new(1);
            let before = adit_gpu_emulated::report().registrations;
            adit_gpu_emulated::set("fail=cuStreamQuery:1");
            choose(&rig, DoorbellChoice::Mapped, false).expect_err("it is not known");
            adit_gpu_emulated::set("");
            // Its two rings and its doorbells, and the block that its command reads into.
            let kept = adit_gpu_emulated::report().registrations - before;
            assert!(kept >= 3, "{kept} of its registrations are left");
        },
    );
}

#[test]
fn a_controller_that_is_silent_to_the_cpu_too_is_an_error() {
    adit_gpu_emulated::load();
    let rig = Rig::with(&["mem=16M,dbbuf=off,faults=lose@op=2"]);
    let error = choose(&rig, DoorbellChoice::Mapped, false).expect_err("silence");
    assert!(error.to_string().contains("rung by the CPU"), "{error}");
}

#[test]
fn a_machine_that_stalls_once_keeps_its_mapped_doorbells() {
    adit_gpu_emulated::load();
    let rig = Rig::with(&["mem=16M,dbbuf=off,faults=delay(2500ms)@op=2:times=1"]);
    let chosen = choose(&rig, DoorbellChoice::Mapped, false).expect("chosen");
    assert_eq!(chosen.doorbells.name(), "mapped");
    drop(chosen.doorbells);
    rig.finish();
}

#[test]
fn queues_share_the_page_of_their_doorbells_and_give_it_back() {
    adit_gpu_emulated::alone(
        "",
        concat!(module_path!(), "::queues_share_the_page_of_their_doorbells_and_give_it_back"),
        || {
            let rig = Rig::new(1);
            let doorbells = Doorbells::mapped(&rig.gpu, &rig.controllers[0]);
            let before = adit_gpu_emulated::report().registrations;
            let queues: Vec<_> = (0..4).map(|_| rig.queue(16, &doorbells)).collect();
            // Two rings each, and one page of registers for all.
            assert_eq!(adit_gpu_emulated::report().registrations - before, 4 * 2 + 1);
            let distances: Vec<u64> =
                queues.iter().map(|queue| queue.cq_doorbell - queue.sq_doorbell).collect();
            assert_eq!(distances, [4; 4]);
            drop(queues);
            assert_eq!(adit_gpu_emulated::report().registrations, before);
            rig.finish();
        },
    );
}

#[test]
fn doorbells_that_are_messages_are_rung_by_proxy_alone() {
    adit_gpu_emulated::load();
    let rig = Rig::new(1);
    let bus: Arc<dyn adit_driver::bus::Bus> = Arc::<SoftBus>::clone(&rig.buses[0]);
    // SAFETY: it rings the head of a queue that does not exist.
    let message = unsafe { Doorbell::message(bus, 0x1008) };
    let Doorbells::Mapped(pages) = Doorbells::mapped(&rig.gpu, &rig.controllers[0]) else {
        panic!("mapped")
    };
    let error = pages.map(&message).expect_err("no store reaches it");
    assert!(error.is_unavailable() && error.to_string().contains("messages"), "{error}");
    let Doorbells::Proxy(proxy) = rig.proxy() else { panic!("a proxy") };
    let slot = proxy.add([message.clone(), message], 16).expect("room");
    drop(slot);
}

/// Creates one-shot rings over the rig's one controller.
fn rings(rig: &Rig, doorbells: DoorbellChoice) -> GioUring {
    rings_on(&rig.gpu, rig, doorbells)
}

fn rings_on(gpu: &Arc<Gpu>, rig: &Rig, doorbells: DoorbellChoice) -> GioUring {
    let pool = Pool::allocate(gpu, &rig.controllers, &[1 << 20], Some(Place::Host));
    let (controller, namespace) = (Arc::clone(&rig.controllers[0]), rig.namespace.clone());
    let options = Options {
        engine: EngineChoice::Rings,
        kernel: KernelChoice::OneShot,
        doorbells,
        queues: 1,
        depth: 16,
        sms: Some(1),
        ..Options::default()
    };
    let devices = vec![Device { controller, namespace }];
    GioUring::init_queue(gpu, devices, pool.expect("a pool"), &options).expect("rings")
}

#[test]
fn rings_that_share_a_controller_share_its_pages() {
    let name = concat!(module_path!(), "::rings_that_share_a_controller_share_its_pages");
    adit_gpu_emulated::alone("", name, || {
        let rig = Rig::new(1);
        let way = |rings: &GioUring| rings.description().doorbells.clone();
        let first = rings(&rig, DoorbellChoice::Auto);
        let second = rings(&rig, DoorbellChoice::Auto);
        let third = rings(&rig, DoorbellChoice::Mapped);
        for rings in [&first, &second, &third] {
            assert_eq!(way(rings), Some(("mapped", None)));
        }
        drop((first, third));
        let chosen = choose(&rig, DoorbellChoice::Auto, false).expect("chosen");
        assert_eq!(chosen.doorbells.name(), "mapped");
        drop(chosen);
        drop(second);
        rig.finish();
        let after = adit_gpu_emulated::report();
        assert_eq!((after.registrations, after.misuses), (0, 0), "{after:?}");
    });
}

#[test]
fn two_gpus_share_the_pages_of_a_controller() {
    let name = concat!(module_path!(), "::two_gpus_share_the_pages_of_a_controller");
    adit_gpu_emulated::alone("gpus=2", name, || {
        let rig = Rig::new(1);
        let other = Gpu::open(1).expect("the second GPU");
        let way = |rings: &GioUring| rings.description().doorbells.clone();
        let first = rings(&rig, DoorbellChoice::Auto);
        let second = rings_on(&other, &rig, DoorbellChoice::Auto);
        assert_eq!((way(&first), way(&second)), (Some(("mapped", None)), Some(("mapped", None))));
        // The GPU that registered the page leaves first.
        drop(first);
        let third = rings_on(&other, &rig, DoorbellChoice::Mapped);
        assert_eq!(way(&third), Some(("mapped", None)));
        drop((second, third, other));
        rig.finish();
        let after = adit_gpu_emulated::report();
        assert_eq!((after.registrations, after.misuses, after.leaks), (0, 0, 0), "{after:?}");
    });
}

#[test]
fn a_gpu_that_does_not_reach_the_pages_of_another_rings_by_proxy() {
    let name =
        concat!(module_path!(), "::a_gpu_that_does_not_reach_the_pages_of_another_rings_by_proxy");
    adit_gpu_emulated::alone("gpus=2,io-register=lost-elsewhere", name, || {
        let rig = Rig::new(1);
        let other = Gpu::open(1).expect("the second GPU");
        let queue = rig.queue(16, &Doorbells::mapped_as(&rig.gpu, true));
        for (gpu, way) in [(&rig.gpu, "mapped"), (&other, "proxy")] {
            let chosen = choose_on(gpu, &rig, DoorbellChoice::Auto, true).expect("chosen");
            assert_eq!(chosen.doorbells.name(), way, "{:?}", chosen.why_not_mapped);
        }
        let error = choose_on(&other, &rig, DoorbellChoice::Mapped, true).expect_err("lost");
        assert!(error.to_string().contains("took no notice until the CPU rang"), "{error}");
        drop((queue, other));
        rig.finish();
        assert_eq!(adit_gpu_emulated::report().misuses, 0);
    });
}

#[test]
fn a_page_stays_while_a_kernel_runs_on_any_gpu_that_reaches_it() {
    let name =
        concat!(module_path!(), "::a_page_stays_while_a_kernel_runs_on_any_gpu_that_reaches_it");
    adit_gpu_emulated::alone("gpus=2", name, || {
        let rig = Rig::new(1);
        let other = Gpu::open(1).expect("the second GPU");
        let doorbell = doorbell(&rig);
        let map = |gpu| MappedPages::new(gpu, false).map(&doorbell).expect("a page");
        let (first, second) = (map(&rig.gpu), map(&other));
        assert!(Arc::ptr_eq(&first.1, &second.1), "one page for both");
        let before = adit_gpu_emulated::report().registrations;
        let kernel = Endless::begin(&other, Runner::Controller).expect("nothing is made");
        drop((first, second));
        assert_eq!(adit_gpu_emulated::report().registrations, before, "the page is left");
        drop(kernel);
    });
}

/// Returns a queue's unused submission doorbell.
fn doorbell(rig: &Rig) -> Doorbell {
    let queue = rig.queue(16, &rig.proxy());
    queue.raw.as_ref().expect("a controller's").doorbells().0.clone()
}

#[test]
fn a_page_whose_last_user_goes_is_there_for_the_next() {
    adit_gpu_emulated::load();
    let rig = Rig::new(1);
    let doorbell = doorbell(&rig);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (doorbell, gpu) = (doorbell.clone(), &rig.gpu);
            scope.spawn(move || {
                let pages = MappedPages::new(gpu, false);
                (0..5000).for_each(|_| drop(pages.map(&doorbell).expect("a page")));
            });
        }
    });
}

#[test]
fn a_page_that_others_registered_is_said_to_be() {
    adit_gpu_emulated::load();
    let rig = Rig::new(1);
    let Doorbell::Mapped(register) = doorbell(&rig) else { panic!("mapped") };
    let page = register.as_ptr().addr() & !4095;
    let at = NonNull::new(register.window().as_ptr().with_addr(page)).expect("mapped");
    for is_device in [false, true] {
        // SAFETY: the controller's registers, which are mapped for as long as the rig is there.
        let others = unsafe { Registration::memory(&rig.gpu, at, 4096, Box::new(())) };
        let error = choose(&rig, DoorbellChoice::Mapped, is_device).expect_err("it is taken");
        assert!(error.is_unavailable(), "{error:?}");
        assert!(error.to_string().contains("CUDA has their page already"), "{error}");
        drop(others);
        let chosen = choose(&rig, DoorbellChoice::Mapped, is_device).expect("it is free");
        assert_eq!(chosen.doorbells.name(), "mapped");
    }
}
